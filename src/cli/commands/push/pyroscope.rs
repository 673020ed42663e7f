//! Pyroscope's push API: `push.v1.PusherService/Push` by the Connect protocol, which Grafana Alloy takes as well.

use std::time::Duration;

use anyhow::{Context, bail};
use base64::prelude::{BASE64_STANDARD, Engine};
use prost::Message;

use crate::args;

/// How long one push may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a refusal that are shown.
const MOST_SHOWN: u64 = 200;

/// `push.v1.PushRequest`.
#[derive(Clone, PartialEq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<Series>,
}

/// `push.v1.RawProfileSeries`.
#[derive(Clone, PartialEq, Message)]
struct Series {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

/// `types.v1.LabelPair`.
#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// `push.v1.RawSample`.
#[derive(Clone, PartialEq, Message)]
struct RawSample {
    /// A profile in the form of pprof, gzipped.
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
}

/// The server, and how we introduce ourselves.
pub struct Pyroscope {
    agent: ureq::Agent,
    server: String,
    labels: Vec<LabelPair>,
    authorization: Option<String>,
    tenant: Option<String>,
}

impl Pyroscope {
    /// As the arguments say.
    pub fn new(arguments: &args::Push, service: &str) -> anyhow::Result<Self> {
        let label = |name: &str, value: &str| LabelPair {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        // The name under which it keeps the profiles of Go's heaps, whose values are named as ours are.
        let mut labels = vec![label("__name__", "memory"), label("service_name", service)];
        let given = arguments.labels.iter();
        labels.extend(given.map(|args::Label(name, value)| label(name, value)));
        let authorization = match &arguments.user {
            None => None,
            Some(user) => {
                let password = std::env::var("ALLOCSAMPLE_PUSH_PASSWORD")
                    .context("--user: ALLOCSAMPLE_PUSH_PASSWORD")?;
                Some(format!(
                    "Basic {}",
                    BASE64_STANDARD.encode(format!("{user}:{password}"))
                ))
            }
        };
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .user_agent(concat!("allocsample/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.into(),
            server: arguments.to.trim_end_matches('/').to_owned(),
            labels,
            authorization,
            tenant: arguments.tenant.clone(),
        })
    }

    /// Sends one profile.
    pub fn push(&self, pprof: &[u8]) -> anyhow::Result<()> {
        let message = PushRequest {
            series: vec![Series {
                labels: self.labels.clone(),
                samples: vec![RawSample {
                    raw_profile: pprof.to_vec(),
                }],
            }],
        };
        let url = format!("{}/push.v1.PusherService/Push", self.server);
        let mut request = self
            .agent
            .post(url)
            .header("Content-Type", "application/proto")
            .header("Connect-Protocol-Version", "1");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        if let Some(tenant) = &self.tenant {
            request = request.header("X-Scope-OrgID", tenant);
        }
        let named = || self.server.clone();
        let mut response = request
            .send(message.encode_to_vec().as_slice())
            .with_context(named)?;
        let status = response.status();
        if !status.is_success() {
            let body = response.body_mut().with_config().limit(MOST_SHOWN);
            let why = body.read_to_string().unwrap_or_default();
            bail!("{}: {status} {}", self.server, why.escape_debug());
        }
        Ok(())
    }
}
