//! The end of stdin, as a sign that whoever started us has gone.
//!
//! A process that is killed cannot tell its children. A pipe that it held open tells them all the same.

/// Does something when stdin has ended. What comes there before is read and thrown away.
pub(crate) fn then(ended: impl FnOnce() + Send + 'static) {
    // A thread of its own: a read of stdin cannot be cancelled, and a runtime would wait for it at its end.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        ended();
    });
}
