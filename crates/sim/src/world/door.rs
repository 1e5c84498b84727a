//! How clients reach nodes: over the simulated network, with the requests themselves left at a desk.
//!
//! What goes over the wire is the number of a request; what is asked and answered stays in memory, as values. So
//! requests and answers are delayed, lost and cut off like any others, and nothing has to be encoded for it.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use node::Node;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use turmoil::net::{TcpListener, TcpStream};

use super::dice::Dice;
use super::machine;
use super::record::Recorder;

/// Where nodes listen for clients.
const DOOR_PORT: u16 = 7_420;

type Work = Box<dyn FnOnce(Node) -> LocalBoxFuture<'static, Box<dyn Any>>>;

/// Where requests and answers are left. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Desk(Rc<RefCell<Papers>>);

#[derive(Default)]
struct Papers {
    next: u64,
    asked: BTreeMap<u64, Work>,
    answered: BTreeMap<u64, Box<dyn Any>>,
}

/// What a client knows of its request.
pub(crate) enum Reply<R> {
    /// It was answered.
    Answer(R),
    /// It was sent, and no answer came.
    Lost,
    /// It never left.
    Unsent,
}

impl Desk {
    /// Has `work` done at a node, and waits so long for the answer.
    pub(crate) async fn ask<R: 'static, F: Future<Output = R> + 'static>(
        &self,
        node: u16,
        patience: Duration,
        work: impl FnOnce(Node) -> F + 'static,
    ) -> Reply<R> {
        let work: Work =
            Box::new(move |node| Box::pin(async move { Box::new(work(node).await) as Box<dyn Any> }));
        let mut sent = None;
        let answered = tokio::time::timeout(patience, self.exchange(node, work, &mut sent)).await;
        let Some(id) = sent else { return Reply::Unsent };
        let answer = self.0.borrow_mut().answered.remove(&id);
        match (answered, answer) {
            (Ok(Ok(())), Some(answer)) => match answer.downcast::<R>() {
                Ok(answer) => Reply::Answer(*answer),
                Err(_) => unreachable!("a request's answer has the request's type"),
            },
            _ => Reply::Lost,
        }
    }

    async fn exchange(&self, node: u16, work: Work, sent: &mut Option<u64>) -> io::Result<()> {
        let mut stream = TcpStream::connect((machine::host(node), DOOR_PORT)).await?;
        let id = {
            let mut papers = self.0.borrow_mut();
            papers.next += 1;
            let id = papers.next;
            papers.asked.insert(id, work);
            id
        };
        *sent = Some(id);
        stream.write_all(&id.to_be_bytes()).await?;
        stream.read_u8().await.map(drop)
    }
}

/// Why a process has ended by itself, if it has.
pub(crate) type Over = Arc<Mutex<Option<String>>>;

/// How a node's door treats its callers.
pub(crate) struct Manners {
    /// So many answers in a hundred get lost on their way.
    pub(crate) lost_percent: u64,
    /// Whether what a caller asked is dropped when the caller hangs up.
    pub(crate) drops_abandoned: bool,
}

/// One life of a node, as its callers see it.
pub(crate) struct Door {
    pub(crate) desk: Desk,
    pub(crate) node: Node,
    pub(crate) manners: Manners,
    pub(crate) dice: RefCell<Dice>,
    pub(crate) recorder: Recorder,
    /// The process has ended, and only the simulation goes on until the end of this step.
    pub(crate) over: Over,
}

impl Door {
    /// Answers whoever calls.
    pub(crate) async fn serve(self: Rc<Door>) -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, DOOR_PORT)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::task::spawn_local(self.clone().answer(stream));
        }
    }

    async fn answer(self: Rc<Door>, mut stream: TcpStream) {
        let Ok(id) = stream.read_u64().await else { return };
        let work = self.desk.0.borrow_mut().asked.remove(&id);
        let Some(work) = work else { return };
        let (mut read, mut write) = stream.into_split();
        let hung_up = async {
            // Callers say nothing more.
            let _ = read.read_u8().await;
        };
        let answer = tokio::select! {
            biased;
            answer = work(self.node.clone()) => answer,
            () = hung_up, if self.manners.drops_abandoned => return,
        };
        if self.over.lock().is_some() {
            return;
        }
        if self.dice.borrow_mut().percent(self.manners.lost_percent) {
            self.recorder.fault("lost_reply");
            return;
        }
        self.desk.0.borrow_mut().answered.insert(id, answer);
        let _ = write.write_u8(1).await;
    }
}
