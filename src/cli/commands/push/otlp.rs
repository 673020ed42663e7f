//! OpenTelemetry's protocol (OTLP over HTTP, protobuf): the profiles signal, for a Collector or a server that speaks
//! the same.

use allocsample_export::write_otlp;
use allocsample_profile::Profile;
use anyhow::{Context, bail};
use prost::Message;

use super::endpoint::Endpoint;
use crate::args;

/// `ExportProfilesServiceResponse`.
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

/// `ExportProfilesPartialSuccess`.
#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_profiles: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// The Collector, and the attributes of the process.
pub struct Otlp {
    endpoint: Endpoint,
    service: String,
    labels: Vec<(String, String)>,
}

impl Otlp {
    /// The server of these arguments.
    pub fn new(arguments: &args::Push, service: &str) -> anyhow::Result<Self> {
        let headers = [("Content-Type", "application/x-protobuf")];
        let labels = arguments.labels.iter();
        Ok(Self {
            endpoint: Endpoint::new(arguments, "/v1development/profiles", &headers)?,
            service: service.to_owned(),
            labels: labels
                .map(|args::Label(name, value)| (name.clone(), value.clone()))
                .collect(),
        })
    }

    /// Sends the allocations since then, and the live heap.
    pub fn push(&self, profile: &Profile, since_ns: u64) -> anyhow::Result<()> {
        let process = &profile.process;
        let attribute = |name: &str, value: String| (name.to_owned(), value);
        let mut resource = vec![
            attribute("service.name", self.service.clone()),
            attribute("process.pid", process.pid.to_string()),
            attribute("process.executable.path", process.executable.clone()),
        ];
        resource.extend(self.labels.iter().cloned());
        let body = write_otlp(profile, since_ns, &resource)
            .context("the profile has too many stacks for OTLP")?;
        let answer = self.endpoint.post(&body)?;
        // It accepts the rest.
        let answer = Response::decode(&answer[..]).unwrap_or_default();
        match answer.partial_success {
            Some(partial) if partial.rejected_profiles > 0 => bail!(
                "{} of 4 kinds of values rejected: {}",
                partial.rejected_profiles,
                partial.error_message.escape_debug()
            ),
            _ => Ok(()),
        }
    }
}
