//! Frames of HTTP/2 by hand, right and wrong.

/// What a connection begins with.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The preface and our settings, which say nothing.
pub(crate) fn begin() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// The same, and no answer may have a body until a window is opened for it.
pub(crate) fn begin_without_window() -> Vec<u8> {
    const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
    let setting = [INITIAL_WINDOW_SIZE.as_slice(), &0_u32.to_be_bytes()].concat();
    [PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat()
}

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = announced(payload.len() as u32, kind, flags, stream);
    frame.extend_from_slice(payload);
    frame
}

/// The head of a frame that says it is so long.
pub(crate) fn announced(length: u32, kind: u8, flags: u8, stream: u32) -> Vec<u8> {
    let mut head = length.to_be_bytes()[1..].to_vec();
    head.extend_from_slice(&[kind, flags]);
    head.extend_from_slice(&stream.to_be_bytes());
    head
}

/// A block of headers, each one literal and without an index.
pub(crate) fn headers(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in pairs {
        block.push(0);
        for text in [name, value] {
            put_length(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

fn put_length(block: &mut Vec<u8>, length: usize) {
    if length < 127 {
        return block.push(length as u8);
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    block.push(rest as u8);
}

/// The headers of a call.
pub(crate) fn call(method: &str, path: &str, content_type: &str) -> Vec<u8> {
    headers(&[
        (":method", method),
        (":scheme", "http"),
        (":authority", "x"),
        (":path", path),
        ("content-type", content_type),
        ("te", "trailers"),
    ])
}
