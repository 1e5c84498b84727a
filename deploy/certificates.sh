#!/bin/sh
# Makes what mutual TLS on the peer port needs: `certificates.sh DIR HOST...`, a CA and one certificate per host.
# A host is a name or an IPv4 address, as it stands in --cluster. What is there already is left alone, so it can be
# run again to add a node. Keep ca.key away from the nodes: whoever has it can be one of them.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: $0 DIR HOST..." >&2
    exit 2
fi
dir=$1
shift
days=${DAYS:-3650}
mkdir -p "$dir"
cd "$dir"
umask 077

if [ ! -f ca.pem ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days "$days" \
        -keyout ca.key -out ca.pem.new -subj "/CN=windlass peers" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
    mv ca.pem.new ca.pem
fi

for host in "$@"; do
    if [ -f "$host.pem" ]; then
        continue
    fi
    case $host in
        *[!0-9.]*) name="DNS:$host" ;;
        *) name="IP:$host" ;;
    esac
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
        -keyout "$host.key" -out "$host.csr" -subj "/CN=$host" 2>/dev/null
    # A node dials and is dialled, so its certificate is for both.
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' "$name" >"$host.ext"
    openssl x509 -req -in "$host.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" \
        -extfile "$host.ext" -out "$host.pem.new" 2>/dev/null
    rm -f "$host.csr" "$host.ext"
    mv "$host.pem.new" "$host.pem"
    echo "made $dir/$host.pem"
done

# In a container the nodes run as a user of their own, who must be able to read their files.
if [ -n "${OWNER:-}" ]; then
    chown "$OWNER" ./*.pem ./*.key
    chown root ca.key
fi
chmod 0644 ./*.pem
