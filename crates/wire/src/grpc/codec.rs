//! How messages become bytes on a stream: small buffers to begin with, so that an idle stream costs little. What is long
//! is counted (`items.rs`) before it is read.

use std::marker::PhantomData;

use bytes::{Buf as _, BufMut as _};
use prost::{DecodeError, Message, Name};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::streams::{Item, Written};
use super::{EnqueueItem, items};
use crate::bytes_of;

/// What a stream takes in memory before it carries anything, each way.
const BUFFER_BYTES: usize = 128;
/// Messages that are ready together go out together, up to about this much.
const FLUSH_BYTES: usize = 64 * 1024;

/// What becomes bytes.
pub trait Encodes: Send + 'static {
    /// Adds its bytes, all at once.
    fn encode(self, buffer: &mut EncodeBuf<'_>);
}

impl<M: Message + 'static> Encodes for M {
    fn encode(self, buffer: &mut EncodeBuf<'_>) {
        buffer.put_slice(&bytes_of(&self));
    }
}

impl<M: 'static> Encodes for Written<M> {
    fn encode(self, buffer: &mut EncodeBuf<'_>) {
        buffer.put_slice(self.bytes());
    }
}

/// What is made of the bytes of a message.
pub trait Decodes: Sized + Send + 'static {
    /// The message.
    type Message: Name;

    /// Reads all of them.
    fn decode(buffer: &mut DecodeBuf<'_>) -> Result<Self, DecodeError>;
}

impl<M: Message + Name + Default + 'static> Decodes for M {
    type Message = M;

    fn decode(buffer: &mut DecodeBuf<'_>) -> Result<M, DecodeError> {
        <M as Message>::decode(buffer)
    }
}

impl Decodes for Item {
    type Message = EnqueueItem;

    fn decode(buffer: &mut DecodeBuf<'_>) -> Result<Item, DecodeError> {
        Item::from_bytes(buffer.copy_to_bytes(buffer.remaining()))
    }
}

/// Messages in buffers that begin small.
#[derive(Clone, Copy, Debug)]
pub struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        SmallCodec(PhantomData)
    }
}

impl<T: Encodes, U: Decodes> Codec for SmallCodec<T, U> {
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

impl<T: Encodes> Encoder for SmallEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}

/// Reads messages, none that is made of too many things.
#[derive(Clone, Copy, Debug)]
pub struct SmallDecoder<U>(PhantomData<U>);

impl<U: Decodes> Decoder for SmallDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The code of a message that is too large, which it would be in memory.
        items::check::<U::Message>(buffer.chunk())
            .map_err(|error| Status::out_of_range(error.to_string()))?;
        U::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, FLUSH_BYTES)
}
