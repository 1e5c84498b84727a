//! `?stale=ok`: a look at this node's own copy, perhaps a moment behind, without asking the leaders.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// What `stale` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StaleWord {
    /// An answer that is a moment behind will do.
    Ok,
}

/// The query of what takes nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StaleQuery {
    /// `ok`: this node's own copy will do, quorum or not.
    #[param(inline)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<StaleWord>,
}
