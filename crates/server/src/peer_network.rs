//! Node to node over TCP, plain or with mutual TLS: the real [`node::Network`].
//!
//! With TLS, what the certificates must hold:
//! - `--peer-ca`: the certificates (PEM) of whoever signs for this cluster. It is the fence: whoever has a
//!   certificate of this CA may be a node, so let it sign for nothing else.
//! - `--peer-cert`: this node's certificate, then what leads to the CA. It is shown when dialling and when
//!   dialled, so an extended key usage, if there is one, must list both server and client. Its alternative
//!   names must list the host that other nodes have for this one in `--cluster`: an IP address as an IP.
//! - `--peer-key`: its private key (PKCS#8, SEC1 or PKCS#1).
//!
//! Greetings, frames and who may talk are `node`'s. TLS is 1.3 only: all nodes are ours.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use node::{Network, Stream};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor, TlsConnector};

use crate::error::Error;
use crate::listen;

/// What a TLS connection begins with: a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// Keys and certificates for connections between nodes.
#[derive(Clone)]
pub struct PeerTls {
    accepting: Arc<ServerConfig>,
    dialling: Arc<ClientConfig>,
}

impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerTls")
    }
}

impl PeerTls {
    /// Reads the three files, and checks that they belong together.
    pub fn load(ca: &Path, cert: &Path, key: &Path) -> Result<PeerTls, Error> {
        let bad = |flag, path: &Path, why: String| Error::PeerFile { flag, path: path.to_owned(), why };
        let mut roots = RootCertStore::empty();
        for certificate in certificates("--peer-ca", ca)? {
            roots.add(certificate).map_err(|error| bad("--peer-ca", ca, error.to_string()))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates("--peer-cert", cert)?;
        let private = read("--peer-key", key)?;
        let private = PrivateKeyDer::from_pem_slice(&private)
            .map_err(|_| bad("--peer-key", key, "there is no private key in it".to_owned()))?;

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| bad("--peer-ca", ca, error.to_string()))?;
        let versions = [&rustls::version::TLS13];
        let unfit = |error: rustls::Error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let why = format!("it does not belong to the certificate in {}", cert.display());
                bad("--peer-key", key, why)
            }
            error => bad("--peer-cert", cert, error.to_string()),
        };
        let accepting = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions)
            .map_err(unfit)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), private.clone_key())
            .map_err(unfit)?;
        let dialling = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(unfit)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, private)
            .map_err(unfit)?;
        Ok(PeerTls { accepting: Arc::new(accepting), dialling: Arc::new(dialling) })
    }
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| Error::PeerFile {
        flag,
        path: PathBuf::from(path),
        why: format!("cannot read it: {error}"),
    })
}

fn certificates(flag: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = read(flag, path)?;
    let bad = |why: String| Error::PeerFile { flag, path: PathBuf::from(path), why };
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| bad(format!("it is not PEM: {error}")))?;
    if found.is_empty() {
        return Err(bad("there is no certificate in it".to_owned()));
    }
    Ok(found)
}

/// The network between nodes: TCP, with mutual TLS or plain.
pub struct TcpNetwork {
    listener: Arc<TcpListener>,
    addr: SocketAddr,
    tls: Option<PeerTls>,
}

impl TcpNetwork {
    /// Takes the port, or says why not. Without TLS only on loopback, unless `insecure`. Needs a runtime.
    pub fn bind(listen: SocketAddr, tls: Option<PeerTls>, insecure: bool) -> Result<TcpNetwork, Error> {
        if tls.is_none() && !insecure && !listen.ip().is_loopback() {
            return Err(Error::PeerInsecure { addr: listen });
        }
        let bound = listen::listen_on(listen).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (addr, listener) = bound.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => Error::PeerPortInUse { addr: listen },
            _ => Error::PeerBind { addr: listen, source },
        })?;
        Ok(TcpNetwork { listener: Arc::new(listener), addr, tls })
    }

    /// Where it listens: with port 0 asked for, the port that it got.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Network for TcpNetwork {
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let tls = self.tls.clone();
        Box::pin(async move {
            // Resolved anew each time: a node may have moved.
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            let Some(tls) = tls else { return Ok(Box::new(stream) as Box<dyn Stream>) };
            let name = ServerName::try_from(host(&address).to_owned())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let stream = TlsConnector::from(tls.dialling).connect(name, stream).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn accept(&self) -> BoxFuture<'static, io::Result<(Box<dyn Stream>, String)>> {
        let (listener, tls) = (self.listener.clone(), self.tls.clone());
        Box::pin(async move {
            let (stream, from) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(stream),
                Some(tls) => Box::new(Accepted::Knock(stream, tls.accepting.into())),
            };
            Ok((stream, from.to_string()))
        })
    }
}

/// The host of `host:port`; an IPv6 address without its brackets.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// A connection that shakes hands when it is first read or written: whoever accepts does not wait for it,
/// and the time that a greeting may take counts for it too.
enum Accepted {
    /// Nothing was heard. What does not begin as TLS does gets not even an alert.
    Knock(TcpStream, TlsAcceptor),
    Shake(Box<Accept<TcpStream>>),
    Open(Box<TlsStream<TcpStream>>),
    Closed,
}

impl Accepted {
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TlsStream<TcpStream>>>> {
        if let Accepted::Knock(stream, _) = self {
            let mut first = [0];
            let mut first = ReadBuf::new(&mut first);
            ready!(stream.poll_peek(context, &mut first))?;
            let knock = std::mem::replace(self, Accepted::Closed);
            match (first.filled(), knock) {
                ([TLS_HANDSHAKE], Accepted::Knock(stream, acceptor)) => {
                    *self = Accepted::Shake(Box::new(acceptor.accept(stream)));
                }
                ([], _) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                _ => {
                    let error = io::Error::new(io::ErrorKind::InvalidData, "it does not speak TLS");
                    return Poll::Ready(Err(error));
                }
            }
        }
        if let Accepted::Shake(shaking) = self {
            let shaken = ready!(Pin::new(shaking).poll(context));
            *self = match shaken {
                Ok(stream) => Accepted::Open(Box::new(stream)),
                Err(error) => {
                    *self = Accepted::Closed;
                    return Poll::Ready(Err(error));
                }
            };
        }
        match self {
            Accepted::Open(stream) => Poll::Ready(Ok(Pin::new(&mut **stream))),
            _ => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(context))?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(context))?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Accepted::Open(stream) => Pin::new(&mut **stream).poll_shutdown(context),
            _ => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    /// Keys and certificates in files.
    struct Keys {
        dir: TempDir,
    }

    impl Keys {
        /// A CA, and certificates of it for a node that is found under these names.
        fn new(names: &[&str]) -> Keys {
            let keys = Keys { dir: tempfile::tempdir().unwrap() };
            let mut ca = CertificateParams::new(Vec::new()).unwrap();
            ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
            keys.write("ca", &ca.pem());
            keys.write("cert", &certificate.pem());
            keys.write("key", &key.serialize_pem());
            keys.write("other key", &KeyPair::generate().unwrap().serialize_pem());
            keys.write("empty", "");
            keys.write("garbage", "-----BEGIN CERTIFICATE-----\n%%%\n");
            keys
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.path(name), text).unwrap();
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn load(&self) -> PeerTls {
            PeerTls::load(&self.path("ca"), &self.path("cert"), &self.path("key")).unwrap()
        }
    }

    fn local() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    fn bind(tls: Option<PeerTls>) -> TcpNetwork {
        TcpNetwork::bind(local(), tls, false).unwrap()
    }

    /// Says "hello" from one to the other and back, through one connection at `address`.
    async fn talk(from: &TcpNetwork, to: &TcpNetwork, address: String) -> io::Result<()> {
        let asking = async {
            let mut stream = from.dial(address).await?;
            stream.write_all(b"hello").await?;
            stream.flush().await?;
            let mut answer = [0; 5];
            stream.read_exact(&mut answer).await?;
            assert_eq!(&answer, b"HELLO");
            io::Result::Ok(())
        };
        let answering = async {
            let (mut stream, _) = to.accept().await?;
            let mut asked = [0; 5];
            stream.read_exact(&mut asked).await?;
            stream.write_all(&asked.to_ascii_uppercase()).await?;
            stream.flush().await?;
            // Until the other side has read it.
            let _ = stream.read(&mut asked).await;
            io::Result::Ok(())
        };
        let both = async { tokio::join!(asking, answering) };
        let (asked, answered) = tokio::time::timeout(SOON, both).await.expect("nobody waits for ever");
        asked.and(answered)
    }

    #[tokio::test]
    async fn peers_talk_plainly_on_loopback() {
        let (one, two) = (bind(None), bind(None));
        talk(&one, &two, two.addr().to_string()).await.unwrap();
        talk(&two, &one, format!("localhost:{}", one.addr().port())).await.unwrap();
        let nobody = { bind(None).addr() };
        let refused = one.dial(nobody.to_string()).await.map(|_| ()).unwrap_err();
        assert_eq!(
            refused.kind(),
            io::ErrorKind::ConnectionRefused,
            "links tell from it that a process ended"
        );
    }

    #[tokio::test]
    async fn peers_with_certificates_of_one_ca_talk() {
        let keys = Keys::new(&["127.0.0.1", "localhost"]);
        let (one, two) = (bind(Some(keys.load())), bind(Some(keys.load())));
        talk(&one, &two, two.addr().to_string()).await.unwrap();
        talk(&two, &one, format!("localhost:{}", one.addr().port())).await.unwrap();
        let nobody = { bind(None).addr() };
        let refused = one.dial(nobody.to_string()).await.map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn peers_of_another_ca_or_under_another_name_are_refused() {
        let keys = Keys::new(&["127.0.0.1"]);
        let two = bind(Some(keys.load()));
        let stranger = bind(Some(Keys::new(&["127.0.0.1"]).load()));
        talk(&stranger, &two, two.addr().to_string()).await.unwrap_err();
        talk(&two, &stranger, stranger.addr().to_string()).await.unwrap_err();
        let one = bind(Some(keys.load()));
        let error = talk(&one, &two, format!("localhost:{}", two.addr().port())).await.unwrap_err();
        assert!(error.to_string().contains("not valid for"), "{error}");
    }

    #[tokio::test]
    async fn a_client_without_a_certificate_is_refused() {
        let keys = Keys::new(&["127.0.0.1"]);
        let two = bind(Some(keys.load()));
        let mut roots = RootCertStore::empty();
        roots.add(certificates("--peer-ca", &keys.path("ca")).unwrap().remove(0)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tls = keys.load();
        tls.dialling = Arc::new(config);
        let error = talk(&bind(Some(tls)), &two, two.addr().to_string()).await.unwrap_err();
        assert!(error.to_string().contains("ertificate"), "{error}");
    }

    #[tokio::test]
    async fn a_plain_client_gets_nothing_from_a_tls_port() {
        let two = bind(Some(Keys::new(&["127.0.0.1"]).load()));
        for words in [&b"windlass\0\0\0\x02xx"[..], b"GET / HTTP/1.1\r\n\r\n"] {
            let mut client = TcpStream::connect(two.addr()).await.unwrap();
            client.write_all(words).await.unwrap();
            let (mut stream, _) = two.accept().await.unwrap();
            let error = stream.read(&mut [0; 8]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            drop(stream);
            let mut got = Vec::new();
            let _ = tokio::time::timeout(SOON, client.read_to_end(&mut got)).await.expect("it is closed");
            assert_eq!(got, b"");
        }
        // One that says nothing does not hold up who comes after it.
        let _silent = TcpStream::connect(two.addr()).await.unwrap();
        let _next = TcpStream::connect(two.addr()).await.unwrap();
        for _ in 0..2 {
            tokio::time::timeout(SOON, two.accept()).await.expect("accepting does not wait").unwrap();
        }
    }

    #[tokio::test]
    async fn an_open_address_needs_tls_and_a_port_can_be_taken() {
        let open: SocketAddr = "0.0.0.0:0".parse().unwrap();
        let error = TcpNetwork::bind(open, None, false).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("--peer-ca") && error.contains("--insecure"), "{error}");
        assert!(TcpNetwork::bind(open, None, true).is_ok());
        assert!(TcpNetwork::bind(open, Some(Keys::new(&["n1"]).load()), false).is_ok());
        let taken = bind(None);
        let error = TcpNetwork::bind(taken.addr(), None, false).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("in use by another process"), "{error}");
    }

    #[test]
    fn bad_peer_files_are_told_with_their_flag_and_name() {
        let keys = Keys::new(&["n1"]);
        for (ca, cert, key, parts) in [
            ("none", "cert", "key", ["--peer-ca", "cannot read it"]),
            ("empty", "cert", "key", ["--peer-ca", "there is no certificate in it"]),
            ("garbage", "cert", "key", ["--peer-ca", "it is not PEM"]),
            ("key", "cert", "key", ["--peer-ca", "there is no certificate in it"]),
            ("ca", "none", "key", ["--peer-cert", "cannot read it"]),
            ("ca", "empty", "key", ["--peer-cert", "there is no certificate in it"]),
            ("ca", "cert", "none", ["--peer-key", "cannot read it"]),
            ("ca", "cert", "cert", ["--peer-key", "there is no private key in it"]),
            ("ca", "cert", "other key", ["--peer-key", "does not belong to the certificate"]),
        ] {
            let [ca, cert, key] = [ca, cert, key].map(|name| keys.path(name));
            let error = PeerTls::load(&ca, &cert, &key).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error} does not say {parts:?}");
        }
    }

    #[test]
    fn the_host_of_an_address_is_what_a_certificate_names() {
        for (address, expected) in [
            ("n1.example:7421", "n1.example"),
            ("10.0.0.1:7421", "10.0.0.1"),
            ("[::1]:7421", "::1"),
            ("n1", "n1"),
        ] {
            assert_eq!(host(address), expected);
        }
    }
}
