//! `allocsample push`: sends the profile of a running process to a server at regular times.
//!
//! The profile is read from outside. Every push carries the allocations since the last acknowledged one: an outage
//! loses nothing and queues nothing.

mod endpoint;
mod otlp;
mod pyroscope;

use std::time::Duration;

use allocsample_profile::Profile;

use crate::args::{self, Protocol};
use crate::exit::{self, Ending, Usage};
use crate::growing::{self, GrowingProfile};
use crate::running;
use otlp::Otlp;
use pyroscope::Pyroscope;

/// After refusals the pause doubles, up to this many times the usual one.
const LONGEST_PAUSE: u32 = 16;

/// A server, by its protocol.
enum Server {
    Pyroscope(Pyroscope),
    Otlp(Otlp),
}

impl Server {
    fn new(arguments: &args::Push, service: &str) -> anyhow::Result<Self> {
        Ok(match arguments.protocol {
            Protocol::Pyroscope => Self::Pyroscope(Pyroscope::new(arguments, service)?),
            Protocol::Otlp => Self::Otlp(Otlp::new(arguments, service)?),
        })
    }

    fn push(&self, profile: &Profile, since_ns: u64) -> anyhow::Result<()> {
        match self {
            Self::Pyroscope(server) => server.push(profile, since_ns),
            Self::Otlp(server) => server.push(profile, since_ns),
        }
    }
}

/// Pushes until the process has ended.
pub fn run(arguments: &args::Push) -> anyhow::Result<Ending> {
    if !arguments.to.starts_with("http://") && !arguments.to.starts_with("https://") {
        let what = format!("--to {}: expected http://... or https://...", arguments.to);
        return Err(Usage(what).into());
    }
    let mut source = GrowingProfile::new(running::profile_of(&arguments.what)?);
    let (mut profile, mut is_over) = settled(arguments.once, || source.read())?;
    let server = Server::new(arguments, &service_name(arguments, &profile))?;
    let every = Duration::from_secs(arguments.every);
    let mut since_ns = 0;
    // Files that were complete before the first push are not sent.
    let begin_ns = profile.process.start_ns;
    let mut refusals: u32 = 0;
    loop {
        match server.push(&profile, since_ns) {
            Ok(()) => {
                // Later pushes begin after this moment; no moment is sent twice.
                since_ns = profile.process.end_ns + 1;
                if refusals > 0 {
                    exit::remark(format_args!("{}: accepted again", arguments.to));
                }
                refusals = 0;
            }
            Err(error) if arguments.once => return Err(error),
            Err(error) => {
                if refusals == 0 {
                    exit::remark(format_args!("{error:#}; trying again"));
                }
                refusals = refusals.saturating_add(1);
            }
        }
        if arguments.once || is_over && refusals == 0 {
            return Ok(Ending::SUCCESS);
        }
        if is_over && refusals > LONGEST_PAUSE.ilog2() {
            anyhow::bail!(
                "{}: the process has ended, and its last profile was not accepted",
                arguments.to
            );
        }
        std::thread::sleep(every * pauses(refusals));
        (profile, is_over) = settled(arguments.once, || source.read_since(since_ns.max(begin_ns)))?;
    }
}

/// Reads the profile, and whether the process has ended. While the process runs, the last 100 ms are left to the next push,
/// unless this is the only one: the file may be newer than the copy of the ring, and a preempted thread may still commit a
/// sample with an earlier time.
fn settled(
    is_only: bool,
    read: impl FnOnce() -> anyhow::Result<Profile>,
) -> anyhow::Result<(Profile, bool)> {
    const UNSETTLED_NS: u64 = 100_000_000;
    let begun_ns = running::now_ns();
    let mut profile = read()?;
    let is_over = !growing::is_running(&profile);
    if !is_over && !is_only {
        profile.end_at(begun_ns.saturating_sub(UNSETTLED_NS));
    }
    Ok((profile, is_over))
}

/// Length of the pause after this many refusals in a row, in usual pauses.
fn pauses(refusals: u32) -> u32 {
    // A server may be unreachable for days.
    2_u32.saturating_pow(refusals).min(LONGEST_PAUSE)
}

fn service_name(arguments: &args::Push, profile: &Profile) -> String {
    let program = &profile.process.executable;
    let file = program.rsplit('/').next().unwrap_or(program);
    arguments.name.clone().unwrap_or_else(|| file.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::Sample;

    fn growing(times: &[u64]) -> Profile {
        let mut profile = Profile::default();
        profile.recovery.ring_found = true;
        for &time_ns in times {
            profile.samples.push(Sample {
                time_ns,
                ..Sample::default()
            });
        }
        profile.process.end_ns = u64::MAX / 2;
        profile
    }

    #[test]
    fn what_may_have_earlier_samples_yet_is_left_for_the_next_push() {
        let now_ns = running::now_ns();
        let times = [
            now_ns - 1_000_000_000,
            now_ns - 1_000,
            now_ns + 60_000_000_000,
        ];
        let (profile, is_over) = settled(false, || Ok(growing(&times))).unwrap();
        assert_eq!((profile.samples.len(), is_over), (1, false));
        // The next push begins behind this moment, so nothing between is missed.
        assert!(profile.process.end_ns < now_ns);
        let (profile, _) = settled(true, || Ok(growing(&times))).unwrap();
        assert_eq!(profile.samples.len(), 3);
        let ended = || {
            let mut profile = growing(&times);
            profile.recovery.ring_found = false;
            Ok(profile)
        };
        let (profile, is_over) = settled(false, ended).unwrap();
        assert_eq!((profile.samples.len(), is_over), (3, true));
    }

    #[test]
    fn the_pause_doubles_up_to_a_limit_however_long_the_server_is_away() {
        let first: Vec<u32> = (0..6).map(pauses).collect();
        assert_eq!(first, [1, 2, 4, 8, 16, 16]);
        for refusals in [31, 32, 33, 1000, u32::MAX] {
            assert_eq!(pauses(refusals), LONGEST_PAUSE, "{refusals}");
        }
    }
}
