//! Takes small values from the front of any bytes. It never runs out: behind the end there are zeros.

/// Bytes that are used up from the front.
pub(crate) struct Pieces<'a>(pub(crate) &'a [u8]);

impl<'a> Pieces<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// Small as a rule, now and then one that is at the edge of what there can be.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=199 => u64::from(small),
            200..=219 => u64::from(self.u32()),
            220..=239 => u64::from(self.u32()) | u64::from(self.u32()) << 32,
            near => u64::MAX - u64::from(255 - near),
        }
    }

    /// Up to `bytes_max` bytes, as many as the next two say.
    pub(crate) fn bytes(&mut self, bytes_max: usize) -> &'a [u8] {
        let count = usize::from(self.u16()) % (bytes_max + 1);
        let (head, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        head
    }
}

/// The opposite of [`Pieces::bytes`].
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}
