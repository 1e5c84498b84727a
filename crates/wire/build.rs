//! Makes the messages and services of `proto/` into Rust, with a compiler in Rust: no `protoc` is needed.
// A build script reads settings and writes files; the crate itself does not.
#![allow(clippy::disallowed_methods, clippy::print_stdout)]

use std::error::Error;
use std::path::PathBuf;

const PROTO: &str = "windlass/v1/windlass.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    if std::env::var_os("CARGO_FEATURE_GRPC").is_none() {
        return Ok(());
    }
    let files = protox::compile([PROTO], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("windlass.v1.bin"), prost::Message::encode_to_vec(&files))?;
    let served = out.join("served");
    std::fs::create_dir_all(&served)?;
    builder().build_server(false).compile_fds_with_config(files.clone(), config())?;
    builder()
        .build_client(false)
        .extern_path(".windlass.v1", "crate::grpc")
        // What streams are full of is read and written by hand.
        .extern_path(".windlass.v1.EnqueueItem", "crate::grpc::streams::Item")
        .extern_path(".windlass.v1.EnqueueResults", "crate::grpc::streams::WrittenResults")
        .extern_path(".windlass.v1.ServerMessage", "crate::grpc::streams::WrittenServerMessage")
        .out_dir(served)
        .compile_fds_with_config(files, config())?;
    Ok(())
}

fn builder() -> tonic_prost_build::Builder {
    tonic_prost_build::configure()
        // Payloads stay where they came in; maps have one order everywhere.
        .bytes(".")
        .btree_map(".")
        // `connect` belongs to whoever knows sockets.
        .build_transport(false)
        .codec_path("crate::grpc::codec::SmallCodec")
}

/// A decoder knows by the name what a message is made of.
fn config() -> prost_build::Config {
    let mut config = prost_build::Config::new();
    config.enable_type_names();
    config
}
