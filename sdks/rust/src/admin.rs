//! Looking and acting: queues, tasks, workers, the cluster. Answers are the messages of [`proto`](crate::proto).

use std::time::Duration;

use tonic::Streaming;
use wire::grpc;

use crate::client::{CALL_TIMEOUT, Client, Grpc, Repeat};
use crate::error::Error;
use crate::task::{TaskId, TaskState, millis};

/// What a person does with a cluster, for programs.
///
/// ```no_run
/// # async fn example(client: windlass::Client) -> Result<(), windlass::Error> {
/// let admin = client.admin();
/// admin.pause_queue("mail").await?;
/// for worker in admin.workers().await? {
///     println!("{} runs {} of {}", worker.id, worker.running, worker.slots);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Admin {
    client: Client,
}

impl Client {
    /// Looking and acting.
    pub fn admin(&self) -> Admin {
        Admin { client: self.clone() }
    }
}

/// One call of a server, with a request that may be sent again.
macro_rules! ask {
    ($self:ident, $repeat:expr, $within:expr, $method:ident, $request:expr) => {{
        let request = $request;
        let call = |mut grpc: Grpc| {
            let request = request.clone();
            async move { grpc.$method(request).await }
        };
        $self.client.ask($repeat, $within, call).await
    }};
    ($self:ident, $method:ident, $request:expr) => {
        ask!($self, Repeat::Safe, CALL_TIMEOUT, $method, $request)
    };
}

impl Admin {
    /// A task with its history.
    pub async fn task(&self, id: &TaskId) -> Result<grpc::TaskInfo, Error> {
        let request = grpc::GetTaskRequest { id: id.to_string(), wait_ms: None, stale: false };
        ask!(self, get_task, request)
    }

    /// A task with its history, when it has ended or after so long, at most a minute.
    pub async fn task_within(&self, id: &TaskId, wait: Duration) -> Result<grpc::TaskInfo, Error> {
        let request = grpc::GetTaskRequest { id: id.to_string(), wait_ms: Some(millis(wait)), stale: false };
        ask!(self, Repeat::Safe, CALL_TIMEOUT + wait, get_task, request)
    }

    /// A task by its dedup key.
    pub async fn find_task(&self, request: grpc::FindTaskRequest) -> Result<grpc::TaskInfo, Error> {
        ask!(self, find_task, request)
    }

    /// One page of the tasks that fit a filter; go on with its cursor until there is none.
    pub async fn tasks(&self, filter: grpc::ListTasksRequest) -> Result<grpc::ListTasksReply, Error> {
        ask!(self, list_tasks, filter)
    }

    /// Why a task is not being worked on.
    pub async fn why(&self, id: &TaskId) -> Result<grpc::WhyTaskReply, Error> {
        ask!(self, why_task, grpc::WhyTaskRequest { id: id.to_string(), stale: false })
    }

    /// Cancels a task: at once when it waits, by a word to its worker when it runs. What it is now.
    pub async fn cancel(&self, id: &TaskId, reason: &str) -> Result<TaskState, Error> {
        let request = grpc::CancelTaskRequest { id: id.to_string(), reason: reason.to_owned() };
        let settled: grpc::Settled = ask!(self, Repeat::Never, CALL_TIMEOUT, cancel_task, request)?;
        settled.state.parse()
    }

    /// Brings a dead, failed or cancelled task back, at the tail of its queue.
    pub async fn requeue(&self, id: &TaskId) -> Result<TaskState, Error> {
        let request = grpc::TaskIdRequest { id: id.to_string() };
        let settled: grpc::Settled = ask!(self, Repeat::Never, CALL_TIMEOUT, requeue_task, request)?;
        settled.state.parse()
    }

    /// Ends a task as cancelled, whoever holds it.
    pub async fn discard(&self, id: &TaskId) -> Result<TaskState, Error> {
        let request = grpc::TaskIdRequest { id: id.to_string() };
        let settled: grpc::Settled = ask!(self, Repeat::Never, CALL_TIMEOUT, discard_task, request)?;
        settled.state.parse()
    }

    /// Takes a claimed task from its holder; it waits again.
    pub async fn put_back(&self, id: &TaskId) -> Result<TaskState, Error> {
        let request = grpc::TaskIdRequest { id: id.to_string() };
        let settled: grpc::Settled = ask!(self, Repeat::Never, CALL_TIMEOUT, put_back_task, request)?;
        settled.state.parse()
    }

    /// One step of an action on all that fit a filter; go on with its cursor until there is none.
    pub async fn act(&self, request: grpc::ActOnTasksRequest) -> Result<grpc::ActOnTasksReply, Error> {
        ask!(self, Repeat::Never, CALL_TIMEOUT, act_on_tasks, request)
    }

    /// One page of what is in progress; go on with its cursor until there is none.
    pub async fn claims(&self, filter: grpc::ListClaimsRequest) -> Result<grpc::ListClaimsReply, Error> {
        ask!(self, list_claims, filter)
    }

    /// All queues, by name.
    pub async fn queues(&self) -> Result<Vec<grpc::Queue>, Error> {
        let reply: grpc::ListQueuesReply = ask!(self, list_queues, grpc::ListQueuesRequest { stale: false })?;
        Ok(reply.queues)
    }

    /// One queue, with its policy.
    pub async fn queue(&self, name: &str) -> Result<grpc::Queue, Error> {
        ask!(self, get_queue, grpc::GetQueueRequest { queue: name.to_owned(), stale: false })
    }

    /// Sets how a queue treats its tasks: the fields that are given replace those of its policy.
    pub async fn set_queue(&self, change: grpc::SetQueueRequest) -> Result<grpc::Queue, Error> {
        ask!(self, set_queue, change)
    }

    /// Makes claims pass a queue by. What is claimed goes on.
    pub async fn pause_queue(&self, name: &str) -> Result<grpc::Queue, Error> {
        ask!(self, pause_queue, grpc::QueueNameRequest { queue: name.to_owned() })
    }

    /// Ends a pause.
    pub async fn resume_queue(&self, name: &str) -> Result<grpc::Queue, Error> {
        ask!(self, resume_queue, grpc::QueueNameRequest { queue: name.to_owned() })
    }

    /// Cancels all that waits in a queue now. How many there are.
    pub async fn purge_queue(&self, name: &str) -> Result<u64, Error> {
        let request = grpc::QueueNameRequest { queue: name.to_owned() };
        let reply: grpc::PurgeQueueReply = ask!(self, Repeat::Never, CALL_TIMEOUT, purge_queue, request)?;
        Ok(reply.purged)
    }

    /// Forgets a queue that is empty.
    pub async fn delete_queue(&self, name: &str) -> Result<(), Error> {
        let request = grpc::QueueNameRequest { queue: name.to_owned() };
        ask!(self, Repeat::Never, CALL_TIMEOUT, delete_queue, request).map(|_: grpc::DeleteQueueReply| ())
    }

    /// All workers, by name.
    pub async fn workers(&self) -> Result<Vec<grpc::Worker>, Error> {
        let mut workers = Vec::new();
        let mut cursor = None;
        loop {
            let request = grpc::ListWorkersRequest { limit: None, cursor };
            let reply: grpc::ListWorkersReply = ask!(self, list_workers, request)?;
            workers.extend(reply.workers);
            cursor = reply.cursor;
            if cursor.is_none() {
                return Ok(workers);
            }
        }
    }

    /// One worker.
    pub async fn worker(&self, name: &str) -> Result<grpc::Worker, Error> {
        ask!(self, get_worker, grpc::WorkerIdRequest { id: name.to_owned() })
    }

    /// Asks a worker to claim nothing more and to finish what runs.
    pub async fn drain_worker(&self, name: &str) -> Result<(), Error> {
        let request = grpc::WorkerIdRequest { id: name.to_owned() };
        ask!(self, drain_worker, request).map(|_: grpc::WorkerActionReply| ())
    }

    /// Asks a worker to stop now and to release what runs.
    pub async fn stop_worker(&self, name: &str) -> Result<(), Error> {
        let request = grpc::WorkerIdRequest { id: name.to_owned() };
        ask!(self, stop_worker, request).map(|_: grpc::WorkerActionReply| ())
    }

    /// Removes a worker: its claims are freed at once and it is fenced.
    pub async fn remove_worker(&self, name: &str) -> Result<(), Error> {
        let request = grpc::WorkerIdRequest { id: name.to_owned() };
        ask!(self, Repeat::Never, CALL_TIMEOUT, remove_worker, request).map(|_: grpc::WorkerActionReply| ())
    }

    /// How the cluster is.
    pub async fn cluster(&self) -> Result<grpc::Cluster, Error> {
        ask!(self, get_cluster, grpc::GetClusterRequest {})
    }

    /// The node that answers, quorum or not.
    pub async fn node(&self) -> Result<grpc::Node, Error> {
        ask!(self, get_node, grpc::GetNodeRequest {})
    }

    /// Moves the leadership of a shard, to this node or to whoever has most of its log.
    pub async fn transfer_leadership(&self, shard: u32, node: Option<u64>) -> Result<(), Error> {
        let request = grpc::TransferLeadershipRequest { shard, node };
        ask!(self, Repeat::Never, CALL_TIMEOUT, transfer_leadership, request).map(|_: grpc::AskedReply| ())
    }

    /// Spreads leaderships and copies evenly.
    pub async fn rebalance(&self) -> Result<(), Error> {
        ask!(self, rebalance, grpc::RebalanceRequest {}).map(|_: grpc::AskedReply| ())
    }

    /// Takes a node out, dead or alive.
    pub async fn leave_node(&self, node: u64) -> Result<(), Error> {
        let request = grpc::LeaveNodeRequest { node };
        ask!(self, Repeat::Never, CALL_TIMEOUT, leave_node, request).map(|_: grpc::AskedReply| ())
    }

    /// Gives a node a vote, in one shard or in all.
    pub async fn promote_node(&self, node: u64, shard: Option<u32>) -> Result<(), Error> {
        let request = grpc::PromoteNodeRequest { node, shard };
        ask!(self, Repeat::Never, CALL_TIMEOUT, promote_node, request).map(|_: grpc::AskedReply| ())
    }

    /// What happens at one node, as it happens: after this event, as far as it is remembered, or from now on. Ends
    /// with its connection.
    pub async fn events(&self, after: Option<u64>) -> Result<Events, Error> {
        let stream = ask!(self, events, grpc::EventsRequest { after })?;
        Ok(Events { stream })
    }
}

/// What happens at one node, as it happens.
pub struct Events {
    stream: Streaming<grpc::Event>,
}

impl Events {
    /// The next event; nothing when the stream ended.
    pub async fn next(&mut self) -> Result<Option<grpc::Event>, Error> {
        self.stream.message().await.map_err(|status| Error::of_status(&status, "the event stream"))
    }
}
