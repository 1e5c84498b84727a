//! How messages become bytes on a stream: small buffers to begin with, so that an idle stream costs little.

use std::marker::PhantomData;

use bytes::BufMut as _;
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder};

/// What a stream takes in memory before it carries anything, each way.
const BUFFER_BYTES: usize = 512;
/// Messages that are ready together go out together, up to about this much.
const FLUSH_BYTES: usize = 64 * 1024;

/// Prost messages in buffers that begin small.
#[derive(Clone, Copy, Debug)]
pub struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        SmallCodec(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = SmallEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> SmallEncoder<T> {
        SmallEncoder(PhantomData)
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstCodec::<T, U>::raw_decoder(settings())
    }
}

/// Writes messages, making room for each at once.
#[derive(Clone, Copy, Debug)]
pub struct SmallEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for SmallEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.encoded_len());
        debug_assert!(buffer.remaining_mut() >= item.encoded_len());
        item.encode_raw(buffer);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, FLUSH_BYTES)
}
