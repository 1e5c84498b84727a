//! How messages become bytes on a stream: small buffers to begin with, so that an idle stream costs little. What is long
//! is counted (`items.rs`) before it is read.

use std::marker::PhantomData;

use bytes::{Buf as _, BufMut as _};
use prost::{Message, Name};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::items;
use crate::bytes_of;

/// What a stream takes in memory before it carries anything, each way.
const BUFFER_BYTES: usize = 128;
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
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = SmallEncoder<T>;
    type Decoder = SmallDecoder<U>;

    fn encoder(&mut self) -> SmallEncoder<T> {
        SmallEncoder(PhantomData)
    }

    fn decoder(&mut self) -> SmallDecoder<U> {
        SmallDecoder(PhantomData)
    }
}

/// Writes messages, each at once.
#[derive(Clone, Copy, Debug)]
pub struct SmallEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for SmallEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&bytes_of(&item));
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}

/// Reads messages, none that is made of too many things.
#[derive(Clone, Copy, Debug)]
pub struct SmallDecoder<U>(PhantomData<U>);

impl<U: Message + Name + Default> Decoder for SmallDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The code of a message that is too large, which it would be in memory.
        items::check::<U>(buffer.chunk()).map_err(|error| Status::out_of_range(error.to_string()))?;
        U::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, FLUSH_BYTES)
}
