//! The gRPC face, on the port of the HTTP face: the same calls, the same rules, and streams for the load.
//!
//! Each file turns messages into calls of the node and its answers into messages; none decides anything about a
//! task. What is right and what is not is said once, by `wire/src/http` and `http`. Start at `work`, where workers
//! live, and `enqueue_stream`; the messages are in `wire/proto`.

mod claims;
mod cluster;
mod delivered;
mod enqueue;
mod enqueue_stream;
mod queues;
mod read;
mod settle;
mod status;
mod tasks;
mod tell;
mod under_way;
mod work;
mod workers;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::Response as HttpResponse;
use futures::stream::BoxStream;
use http::Request as HttpRequest;
use http::header::CONTENT_TYPE;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming, async_trait};
use wire::grpc::served::windlass_server::{SERVICE_NAME, Windlass, WindlassServer};
use wire::grpc::streams::{Item, WrittenResults};
use wire::grpc::{self, DESCRIPTOR};
use wire::http::fresh::StaleWord;

use self::delivered::Undelivered;
use crate::app::App;
use crate::problem::Refusal;
use crate::unread::Unread;

/// What a call answers.
type Answered<T> = Result<Response<T>, Refusal>;

/// Whether a request is meant for this face.
pub(crate) fn is_grpc<B>(request: &HttpRequest<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// A refusal as a whole response.
pub(crate) fn refused(refusal: Refusal) -> HttpResponse {
    Status::from(refusal).into_http::<Body>()
}

/// Whether a call is answered by one message; streams last, and health and reflection say little.
pub(crate) fn is_one_message(path: &str) -> bool {
    let call = path.strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE_NAME)?.strip_prefix('/'));
    call.is_some_and(|call| !matches!(call, "Work" | "EnqueueStream" | "Events"))
}

/// Lets a response go out, watching over the claims in it; where it is one message, also over whether it is read.
pub(crate) fn sent(mut response: HttpResponse, unread: Option<Arc<Unread>>, app: &App) -> HttpResponse {
    status::name_too_large(response.headers_mut());
    let undelivered = Undelivered::of(&mut response);
    let watched = match unread {
        Some(unread) => unread.watched_message(response, app),
        None => Ok(response),
    };
    match (watched, undelivered) {
        (Ok(response), None) => response,
        (Ok(response), Some(undelivered)) => undelivered.watch(response),
        (Err(refusal), undelivered) => {
            undelivered.into_iter().for_each(Undelivered::give_back);
            refused(refusal)
        }
    }
}

/// Every service, ready to serve: ours, health and reflection.
pub(crate) fn router(app: App) -> Router {
    let windlass = WindlassServer::new(Face { app: app.clone() })
        .max_decoding_message_size(app.config.request_bytes_max);
    Routes::new(windlass).add_service(health(&app)).add_service(reflection()).prepare().into_axum_router()
}

/// `grpc.health.v1`: serving until the server stops.
fn health(
    app: &App,
) -> tonic_health::pb::health_server::HealthServer<impl tonic_health::pb::health_server::Health> {
    let (reporter, service) = tonic_health::server::health_reporter();
    let stopping = app.stopping().clone();
    tokio::spawn(async move {
        reporter.set_service_status(SERVICE_NAME, tonic_health::ServingStatus::Serving).await;
        stopping.cancelled().await;
        reporter.set_service_status(SERVICE_NAME, tonic_health::ServingStatus::NotServing).await;
        reporter.set_service_status("", tonic_health::ServingStatus::NotServing).await;
    });
    service
}

/// Lets tools such as grpcurl ask what there is.
fn reflection()
-> tonic_reflection::server::v1::ServerReflectionServer<impl tonic_reflection::server::v1::ServerReflection> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTOR)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptions were made by the compiler of this build")
}

/// `stale` in the words of the HTTP face.
fn stale_word(stale: bool) -> Option<StaleWord> {
    stale.then_some(StaleWord::Ok)
}

/// The service.
struct Face {
    app: App,
}

#[async_trait]
impl Windlass for Face {
    type WorkStream = work::Outgoing;
    type EnqueueStreamStream = BoxStream<'static, Result<WrittenResults, Status>>;
    type EventsStream = cluster::Events;

    async fn work(
        &self,
        request: Request<Streaming<grpc::WorkerMessage>>,
    ) -> Result<Response<work::Outgoing>, Status> {
        work::begin(&self.app, request.into_inner()).await
    }

    async fn enqueue_stream(
        &self,
        request: Request<Streaming<Item>>,
    ) -> Result<Response<Self::EnqueueStreamStream>, Status> {
        Ok(Response::new(enqueue_stream::run(self.app.clone(), request.into_inner())))
    }

    async fn get_cluster(
        &self,
        _: Request<grpc::GetClusterRequest>,
    ) -> Result<Response<grpc::Cluster>, Status> {
        Ok(cluster::get(&self.app))
    }

    async fn get_node(&self, _: Request<grpc::GetNodeRequest>) -> Result<Response<grpc::Node>, Status> {
        Ok(cluster::node(&self.app))
    }

    async fn rebalance(
        &self,
        _: Request<grpc::RebalanceRequest>,
    ) -> Result<Response<grpc::AskedReply>, Status> {
        Ok(cluster::rebalance(&self.app).await?)
    }

    async fn events(
        &self,
        request: Request<grpc::EventsRequest>,
    ) -> Result<Response<cluster::Events>, Status> {
        Ok(cluster::events(&self.app, request.into_inner()))
    }

    async fn enqueue(
        &self,
        request: Request<grpc::EnqueueRequest>,
    ) -> Result<Response<grpc::EnqueueReply>, Status> {
        Ok(enqueue::one(&self.app, request.into_inner()).await?)
    }

    async fn enqueue_many(
        &self,
        request: Request<grpc::EnqueueManyRequest>,
    ) -> Result<Response<grpc::EnqueueManyReply>, Status> {
        Ok(enqueue::many(&self.app, request.into_inner()).await?)
    }

    async fn claim(
        &self,
        request: Request<grpc::ClaimRequest>,
    ) -> Result<Response<grpc::ClaimReply>, Status> {
        Ok(claims::claim(&self.app, request.into_inner()).await?)
    }

    async fn claim_by_id(
        &self,
        request: Request<grpc::ClaimByIdRequest>,
    ) -> Result<Response<grpc::ClaimReply>, Status> {
        Ok(claims::claim_by_id(&self.app, request.into_inner()).await?)
    }

    async fn ack(&self, request: Request<grpc::AckRequest>) -> Result<Response<grpc::AckReply>, Status> {
        Ok(claims::ack(&self.app, request.into_inner()).await?)
    }

    async fn fail(&self, request: Request<grpc::FailRequest>) -> Result<Response<grpc::Settled>, Status> {
        Ok(claims::fail(&self.app, request.into_inner()).await?)
    }

    async fn extend(&self, request: Request<grpc::ExtendRequest>) -> Result<Response<grpc::Held>, Status> {
        Ok(claims::extend(&self.app, request.into_inner()).await?)
    }

    async fn release(
        &self,
        request: Request<grpc::ReleaseRequest>,
    ) -> Result<Response<grpc::Settled>, Status> {
        Ok(claims::release(&self.app, request.into_inner()).await?)
    }

    async fn progress(
        &self,
        request: Request<grpc::ProgressRequest>,
    ) -> Result<Response<grpc::Held>, Status> {
        Ok(claims::progress(&self.app, request.into_inner()).await?)
    }

    async fn settle(
        &self,
        request: Request<grpc::SettleRequest>,
    ) -> Result<Response<grpc::SettleReply>, Status> {
        Ok(claims::settle(&self.app, request.into_inner()).await?)
    }

    async fn list_claims(
        &self,
        request: Request<grpc::ListClaimsRequest>,
    ) -> Result<Response<grpc::ListClaimsReply>, Status> {
        Ok(claims::list(&self.app, request.into_inner()).await?)
    }

    async fn get_task(
        &self,
        request: Request<grpc::GetTaskRequest>,
    ) -> Result<Response<grpc::TaskInfo>, Status> {
        Ok(tasks::get(&self.app, request.into_inner()).await?)
    }

    async fn find_task(
        &self,
        request: Request<grpc::FindTaskRequest>,
    ) -> Result<Response<grpc::TaskInfo>, Status> {
        Ok(tasks::find(&self.app, request.into_inner()).await?)
    }

    async fn list_tasks(
        &self,
        request: Request<grpc::ListTasksRequest>,
    ) -> Result<Response<grpc::ListTasksReply>, Status> {
        Ok(tasks::list(&self.app, request.into_inner()).await?)
    }

    async fn why_task(
        &self,
        request: Request<grpc::WhyTaskRequest>,
    ) -> Result<Response<grpc::WhyTaskReply>, Status> {
        Ok(tasks::why(&self.app, request.into_inner()).await?)
    }

    async fn cancel_task(
        &self,
        request: Request<grpc::CancelTaskRequest>,
    ) -> Result<Response<grpc::Settled>, Status> {
        Ok(tasks::cancel(&self.app, request.into_inner()).await?)
    }

    async fn requeue_task(
        &self,
        request: Request<grpc::TaskIdRequest>,
    ) -> Result<Response<grpc::Settled>, Status> {
        Ok(tasks::requeue(&self.app, request.into_inner()).await?)
    }

    async fn discard_task(
        &self,
        request: Request<grpc::TaskIdRequest>,
    ) -> Result<Response<grpc::Settled>, Status> {
        Ok(tasks::discard(&self.app, request.into_inner()).await?)
    }

    async fn put_back_task(
        &self,
        request: Request<grpc::TaskIdRequest>,
    ) -> Result<Response<grpc::Settled>, Status> {
        Ok(tasks::put_back(&self.app, request.into_inner()).await?)
    }

    async fn act_on_tasks(
        &self,
        request: Request<grpc::ActOnTasksRequest>,
    ) -> Result<Response<grpc::ActOnTasksReply>, Status> {
        Ok(tasks::act(&self.app, request.into_inner()).await?)
    }

    async fn list_queues(
        &self,
        request: Request<grpc::ListQueuesRequest>,
    ) -> Result<Response<grpc::ListQueuesReply>, Status> {
        Ok(queues::list(&self.app, request.into_inner()).await?)
    }

    async fn get_queue(
        &self,
        request: Request<grpc::GetQueueRequest>,
    ) -> Result<Response<grpc::Queue>, Status> {
        Ok(queues::get(&self.app, request.into_inner()).await?)
    }

    async fn set_queue(
        &self,
        request: Request<grpc::SetQueueRequest>,
    ) -> Result<Response<grpc::Queue>, Status> {
        Ok(queues::set(&self.app, request.into_inner()).await?)
    }

    async fn pause_queue(
        &self,
        request: Request<grpc::QueueNameRequest>,
    ) -> Result<Response<grpc::Queue>, Status> {
        Ok(queues::pause(&self.app, request.into_inner()).await?)
    }

    async fn resume_queue(
        &self,
        request: Request<grpc::QueueNameRequest>,
    ) -> Result<Response<grpc::Queue>, Status> {
        Ok(queues::resume(&self.app, request.into_inner()).await?)
    }

    async fn purge_queue(
        &self,
        request: Request<grpc::QueueNameRequest>,
    ) -> Result<Response<grpc::PurgeQueueReply>, Status> {
        Ok(queues::purge(&self.app, request.into_inner()).await?)
    }

    async fn delete_queue(
        &self,
        request: Request<grpc::QueueNameRequest>,
    ) -> Result<Response<grpc::DeleteQueueReply>, Status> {
        Ok(queues::delete(&self.app, request.into_inner()).await?)
    }

    async fn register(
        &self,
        request: Request<grpc::RegisterRequest>,
    ) -> Result<Response<grpc::RegisterReply>, Status> {
        Ok(workers::register(&self.app, request.into_inner()).await?)
    }

    async fn beat(&self, request: Request<grpc::BeatRequest>) -> Result<Response<grpc::BeatReply>, Status> {
        Ok(workers::beat(&self.app, request.into_inner()).await?)
    }

    async fn end_worker(
        &self,
        request: Request<grpc::WorkerIdRequest>,
    ) -> Result<Response<grpc::WorkerActionReply>, Status> {
        Ok(workers::end(&self.app, request.into_inner()).await?)
    }

    async fn list_workers(
        &self,
        request: Request<grpc::ListWorkersRequest>,
    ) -> Result<Response<grpc::ListWorkersReply>, Status> {
        Ok(workers::list(&self.app, request.into_inner()).await?)
    }

    async fn get_worker(
        &self,
        request: Request<grpc::WorkerIdRequest>,
    ) -> Result<Response<grpc::Worker>, Status> {
        Ok(workers::get(&self.app, request.into_inner()).await?)
    }

    async fn drain_worker(
        &self,
        request: Request<grpc::WorkerIdRequest>,
    ) -> Result<Response<grpc::WorkerActionReply>, Status> {
        Ok(workers::drain(&self.app, request.into_inner()).await?)
    }

    async fn stop_worker(
        &self,
        request: Request<grpc::WorkerIdRequest>,
    ) -> Result<Response<grpc::WorkerActionReply>, Status> {
        Ok(workers::stop(&self.app, request.into_inner()).await?)
    }

    async fn remove_worker(
        &self,
        request: Request<grpc::WorkerIdRequest>,
    ) -> Result<Response<grpc::WorkerActionReply>, Status> {
        Ok(workers::remove(&self.app, request.into_inner()).await?)
    }

    async fn transfer_leadership(
        &self,
        request: Request<grpc::TransferLeadershipRequest>,
    ) -> Result<Response<grpc::AskedReply>, Status> {
        Ok(cluster::transfer(&self.app, request.into_inner()).await?)
    }

    async fn leave_node(
        &self,
        request: Request<grpc::LeaveNodeRequest>,
    ) -> Result<Response<grpc::AskedReply>, Status> {
        Ok(cluster::leave(&self.app, request.into_inner()).await?)
    }

    async fn promote_node(
        &self,
        request: Request<grpc::PromoteNodeRequest>,
    ) -> Result<Response<grpc::AskedReply>, Status> {
        Ok(cluster::promote(&self.app, request.into_inner()).await?)
    }
}
