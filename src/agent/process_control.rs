//! Control of the agent by the program itself, through the hook ABI.

use core::sync::atomic::Ordering;

use allocsample_record::{Figure, LostReason};
use allocsample_ring::request;
use allocsample_sampling::Interval;

use crate::accounting::selection::Filter;
use crate::accounting::slow_path::SlowPath;
use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::os::{self, clock, process};
use crate::recording::{self, DrainState, Recording};
use crate::shim::Caller;
use crate::switch::Switch;

/// An order of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Resume sampling, at this interval or at the last one.
    Start(Option<Interval>),
    /// Stop sampling.
    Stop,
    /// Write everything that is in memory to the file.
    Flush,
    /// Flush, then copy the file.
    Snapshot,
    /// Continue the profile in another file.
    Rotate,
    /// Continue the profile in another file, and delete the present one.
    Reset,
}

/// Why an order was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The agent is off, was interrupted by the caller, or is confined.
    Off,
    /// The drain thread was too slow, or there are too many different intervals or selected threads.
    Limit,
}

/// The state of the agent. Sizes are in bytes, times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "documented in allocsample.h")]
pub struct Status {
    pub interval: Option<Interval>,
    pub lost_samples: u64,
    pub lost_bytes: u64,
    pub left_out_samples: u64,
    pub left_out_bytes: u64,
    pub profile_bytes: u64,
    pub memory_bytes: u64,
    pub ring_used_bytes: u64,
    pub ring_bytes: u64,
    pub sample_ns: u64,
    pub drain_ns: u64,
}

impl Agent {
    /// Carries out an order; work on files is complete when this returns. The calling thread must hold no lock of the dynamic
    /// loader, nor one that a starting thread takes.
    pub fn order(&self, thread: &ShimThread, order: Order) -> Result<(), Refusal> {
        let what = match order {
            Order::Start(_) | Order::Stop => {
                return self.with_recording(thread, |recording, slow_path| {
                    let interval = match order {
                        Order::Start(None) => self.accounting.control.interval_before(),
                        Order::Start(interval) => interval,
                        _ => None,
                    };
                    let interval = interval.or(match order {
                        Order::Stop => None,
                        _ => self.config().interval,
                    });
                    let is_done = self.apply_interval(recording, interval, |_| true);
                    slow_path.adopt(&self.accounting.control.force());
                    is_done.then_some(()).ok_or(Refusal::Limit)
                })?;
            }
            Order::Flush => request::FLUSH,
            Order::Snapshot => request::SNAPSHOT,
            Order::Rotate => request::ROTATE,
            Order::Reset => request::RESET,
        };
        let recording = self.with_recording(thread, |recording, _| recording)?;
        // Not as a muted thread: a file ends with the totals of those that are quiet (`Agent::write_totals`), and this one is.
        recording.ask_for_file_work(what, 0);
        let ticket = recording.take_ticket();
        self.publisher.set_drain_to_work(recording, false);
        for _ in 0..FILE_WORK_MS {
            if recording.drain_state() == DrainState::Failed {
                break;
            }
            recording.wake_drain();
            if recording.is_ticket_done(ticket) {
                return Ok(());
            }
            clock::sleep_ms(1);
        }
        Err(Refusal::Limit)
    }

    /// Turns sampling on or off for the thread with this tid (0: the calling thread), from its next slow path on.
    pub fn order_thread(&self, thread: &ShimThread, tid: u32, is_in: bool) -> Result<(), Refusal> {
        self.with_recording(thread, |recording, slow_path| {
            let tid = if tid == 0 { process::tid() } else { tid };
            let is_done = self
                .accounting
                .selection
                .select_thread(recording, tid, is_in);
            self.accounting.selection.select(thread, slow_path);
            is_done.then_some(()).ok_or(Refusal::Limit)
        })?
    }

    /// Sets the filter. The calling thread applies it at once, the others at their next slow path.
    pub fn order_filter(&self, thread: &ShimThread, filter: &Filter) -> Result<(), Refusal> {
        self.with_recording(thread, |recording, slow_path| {
            self.accounting.selection.filter(recording, filter);
            self.accounting.selection.select(thread, slow_path);
        })
    }

    /// Returns the state of the agent, and copies the profile's path, cut to the room in `path` and ended by NUL.
    pub fn status(&self, path: &mut [u8]) -> Result<Status, Refusal> {
        self.notice_fork();
        if self.switch.get() != Switch::On {
            return Err(Refusal::Off);
        }
        path.fill(0);
        let interval = self.interval_in_force();
        let Some(recording) = recording::current() else {
            return Ok(Status {
                interval,
                ..Status::default()
            });
        };
        let room = path.len().saturating_sub(1);
        for (to, from) in path.iter_mut().take(room).zip(recording.path.as_bytes()) {
            *to = *from;
        }
        recording.update_figures();
        let ring = &recording.ring;
        let figures = ring.figures();
        let figure = |figure: Figure| figures.get(figure as usize).copied().unwrap_or(0);
        let mut status = Status {
            interval,
            profile_bytes: figure(Figure::WrittenBytes),
            memory_bytes: figure(Figure::MappedBytes),
            ring_used_bytes: ring.used_words() * 8,
            ring_bytes: ring.capacity_words() * 8,
            sample_ns: figure(Figure::TimedSamplesNs)
                .checked_div(figure(Figure::TimedSamples))
                .unwrap_or(0),
            drain_ns: figure(Figure::DrainNs),
            ..Status::default()
        };
        for (reason, (events, bytes)) in LostReason::ALL.into_iter().zip(ring.lost()) {
            if reason == LostReason::LeftOut {
                (status.left_out_samples, status.left_out_bytes) = (events, bytes);
            } else if reason.is_sample_missing() {
                status.lost_samples += events;
                status.lost_bytes += bytes;
            }
        }
        Ok(status)
    }

    /// Mutes the thread and runs `work` with the recording, which is begun if there is none.
    fn with_recording<R>(
        &self,
        thread: &ShimThread,
        work: impl FnOnce(&'static Recording, &SlowPath<'_>) -> R,
    ) -> Result<R, Refusal> {
        self.notice_fork_on(thread);
        if self.switch.get() != Switch::On || os::is_filtered() {
            return Err(Refusal::Off);
        }
        let (slow_path, _) = self
            .enter(thread, 0, &Caller::UNKNOWN)
            .ok_or(Refusal::Off)?;
        let recording = self
            .capture
            .in_area(thread, |area| {
                recording::current().or_else(|| {
                    let begun = self.begin_recording(area)?;
                    if self.config().is_stopped {
                        self.publisher
                            .write_interval(begun, None, None, self.seed());
                    }
                    Some(begun)
                })
            })
            .flatten()
            .ok_or(Refusal::Off)?;
        Ok(work(recording, &slow_path))
    }
}

/// Time limit for the drain thread.
const FILE_WORK_MS: u32 = 10_000;

impl Recording {
    /// Takes a ticket for all earlier requests. [`Recording::is_ticket_done`] returns true once they are done.
    fn take_ticket(&self) -> u32 {
        // Release: pairs with `ticket`, so that who reads the number finds what was asked.
        (self.tickets.fetch_add(1, Ordering::Release)).wrapping_add(1)
    }

    /// The newest ticket. The drain thread reads it before it looks for requests, and passes it to [`Self::tickets_are_done`]
    /// afterwards.
    pub fn ticket(&self) -> u32 {
        self.tickets.load(Ordering::Acquire)
    }

    /// See [`Recording::ticket`].
    pub fn tickets_are_done(&self, ticket: u32) {
        self.tickets_done.store(ticket, Ordering::Release);
    }

    fn is_ticket_done(&self, ticket: u32) -> bool {
        let ahead = ticket.wrapping_sub(self.tickets_done.load(Ordering::Acquire));
        ahead == 0 || ahead > u32::MAX / 2
    }
}

#[cfg(test)]
mod tests;
