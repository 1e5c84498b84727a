//! A worker's session: registered at any node, kept by beats that list what is held.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Shared, rest};
use crate::client::Client;

const BEAT: Duration = Duration::from_millis(500);

/// A session, as long as the value lives.
pub(super) struct Session {
    inner: Arc<Inner>,
    beating: Option<JoinHandle<()>>,
}

struct Inner {
    is_beating: AtomicBool,
    /// The session is to be made anew.
    is_lost: AtomicBool,
    id: Mutex<Option<String>>,
    running: Mutex<Vec<(String, u64)>>,
}

impl Session {
    pub(super) fn start(shared: &Arc<Shared>, worker: &str, n: usize) -> Session {
        let inner = Arc::new(Inner {
            is_beating: AtomicBool::new(true),
            is_lost: AtomicBool::new(true),
            id: Mutex::new(None),
            running: Mutex::default(),
        });
        let (beats, worker, client) = (inner.clone(), worker.to_owned(), Client::new(&shared.addresses, n));
        let beating = std::thread::spawn(move || beat(&beats, &worker, client));
        Session { inner, beating: Some(beating) }
    }

    /// The session, if there is one now.
    pub(super) fn id(&self) -> Option<String> {
        lock(&self.inner.id).clone()
    }

    /// The session is not known any more.
    pub(super) fn renew(&self) {
        self.inner.is_lost.store(true, Ordering::SeqCst);
    }

    pub(super) fn hold(&self, task: &str, fence: u64) {
        lock(&self.inner.running).push((task.to_owned(), fence));
    }

    pub(super) fn let_go(&self, task: &str) {
        lock(&self.inner.running).retain(|(held, _)| held != task);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.inner.is_beating.store(false, Ordering::SeqCst);
        if let Some(thread) = self.beating.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn beat(inner: &Inner, worker: &str, mut client: Client) {
    while inner.is_beating.load(Ordering::SeqCst) {
        let next = Instant::now() + BEAT;
        if client.connect() {
            let session = lock(&inner.id).clone();
            match session.filter(|_| !inner.is_lost.load(Ordering::SeqCst)) {
                None => register(inner, worker, &mut client),
                Some(session) => tell(inner, worker, &session, &mut client),
            }
        }
        rest(&inner.is_beating, next);
    }
}

fn register(inner: &Inner, worker: &str, client: &mut Client) {
    let body = json!({"id": worker, "slots": 1000, "beat_ms": BEAT.as_millis() as u64}).to_string();
    let answer = client.call("POST", "/v1/workers", &body, Duration::ZERO);
    if let Some(session) = answer.as_ref().and_then(|answer| answer.body["session"].as_str()) {
        *lock(&inner.id) = Some(session.to_owned());
        inner.is_lost.store(false, Ordering::SeqCst);
    }
}

fn tell(inner: &Inner, worker: &str, session: &str, client: &mut Client) {
    let running: Vec<_> =
        lock(&inner.running).iter().map(|(id, fence)| json!({"id": id, "fence": fence})).collect();
    let body = json!({"session": session, "running": running}).to_string();
    let answer = client.call("POST", &format!("/v1/workers/{worker}/beat"), &body, Duration::ZERO);
    if answer.is_some_and(|answer| (400..500).contains(&answer.status)) {
        inner.is_lost.store(true, Ordering::SeqCst);
    }
}
