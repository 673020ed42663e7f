//! Where pushes go: an address, and our credentials.

use std::time::Duration;

use anyhow::{Context, bail};
use base64::prelude::{BASE64_STANDARD, Engine};

use crate::args;

/// How long one push may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a refusal that are shown.
const MOST_SHOWN: u64 = 200;
/// Bytes of an answer that are read.
const MOST_READ: u64 = 1 << 20;

/// A server's address, and our credentials.
pub struct Endpoint {
    agent: ureq::Agent,
    server: String,
    path: &'static str,
    headers: Vec<(&'static str, String)>,
}

impl Endpoint {
    /// The endpoint of these arguments. `path` follows their address, and every push has these `headers`.
    pub fn new(
        arguments: &args::Push,
        path: &'static str,
        headers: &[(&'static str, &str)],
    ) -> anyhow::Result<Self> {
        let mut headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        if let Some(user) = &arguments.user {
            let password = std::env::var("ALLOCSAMPLE_PUSH_PASSWORD")
                .context("--user: ALLOCSAMPLE_PUSH_PASSWORD")?;
            let both = BASE64_STANDARD.encode(format!("{user}:{password}"));
            headers.push(("Authorization", format!("Basic {both}")));
        }
        if let Some(tenant) = &arguments.tenant {
            headers.push(("X-Scope-OrgID", tenant.clone()));
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .user_agent(concat!("allocsample/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.into(),
            server: arguments.to.trim_end_matches('/').to_owned(),
            path,
            headers,
        })
    }

    /// Sends `body` and returns the server's answer.
    pub fn post(&self, body: &[u8]) -> anyhow::Result<Vec<u8>> {
        let named = || self.server.clone();
        let mut request = self.agent.post(format!("{}{}", self.server, self.path));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let mut response = request.send(body).with_context(named)?;
        let status = response.status();
        if !status.is_success() {
            let body = response.body_mut().with_config().limit(MOST_SHOWN);
            let why = body.read_to_string().unwrap_or_default();
            bail!("{}: {status} {}", self.server, why.escape_debug());
        }
        let body = response.body_mut().with_config().limit(MOST_READ);
        body.read_to_vec().with_context(named)
    }
}
