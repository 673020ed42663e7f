//! What the program itself may ask of its agent.

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

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Samples again: at this interval, or at the one of before.
    Start(Option<Interval>),
    /// No more samples.
    Stop,
    /// Write everything that is in memory to the file.
    Flush,
    /// Flush, then copy the file.
    Snapshot,
    /// The profile is to go on in another file.
    Rotate,
    /// The same, and the file so far is to be forgotten.
    Reset,
}

/// Why it was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The agent is off, or this is a moment at which it can do nothing: it was interrupted, or confined.
    Off,
    /// The drain thread has not done it in time, or too many things are told apart.
    Limit,
}

/// How it is; bytes, and times in nanoseconds.
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
    /// Does it, or has it done: what concerns files is done when this returns. On a thread of the program, which holds no lock
    /// of the loader's, nor one that a thread needs to start.
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
        // Not as a muted thread: a file ends with the totals of those that are quiet (`Agent::tell_totals`), and this one is.
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

    /// The thread of this number, or the calling one for 0, is sampled from its next look at the agent on, or not.
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

    /// From their next look at the agent on threads are sampled as the filter says; the calling one at once.
    pub fn order_filter(&self, thread: &ShimThread, filter: &Filter) -> Result<(), Refusal> {
        self.with_recording(thread, |recording, slow_path| {
            self.accounting.selection.filter(recording, filter);
            self.accounting.selection.select(thread, slow_path);
        })
    }

    /// How it is, and where the profile lies. The path is copied as far as there is room, and ends in NUL.
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
        recording.tell_figures();
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

    /// On a muted thread, with the recording, which is begun if there is none.
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

/// How long the drain thread may take.
const FILE_WORK_MS: u32 = 10_000;

impl Recording {
    /// Of what was asked before: [`Recording::is_ticket_done`] will tell.
    fn take_ticket(&self) -> u32 {
        // Release: pairs with `ticket`, so that who reads the number finds what was asked.
        self.tickets.fetch_add(1, Ordering::Release) + 1
    }

    /// For the drain thread, before it looks what is asked: all of that is done when it then calls `tickets_are_done`.
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
