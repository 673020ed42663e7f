//! The hooks by which a program controls its own agent.

use std::ffi::c_char;

use allocsample_agent::Filter;
use allocsample_agent::Interval;
use allocsample_agent::process_control::{Order, Refusal};

use super::{Entered, INVALID, LIMIT, OFF, OK, text_of};
use crate::AGENT;
use crate::slow_path::this_thread;

const PATH_BYTES: usize = 4096;

/// Mirror of `allocsample_status`.
#[repr(C)]
pub struct RawStatus {
    size: u32,
    is_on: u32,
    interval: u64,
    lost_samples: u64,
    lost_bytes: u64,
    left_out_samples: u64,
    left_out_bytes: u64,
    profile_bytes: u64,
    memory_bytes: u64,
    ring_used_bytes: u64,
    ring_bytes: u64,
    sample_ns: u64,
    drain_ns: u64,
    profile: [u8; PATH_BYTES],
}

const _: () = assert!(size_of::<c_char>() == 1 && size_of::<RawStatus>() == 96 + PATH_BYTES);

fn result(result: Result<(), Refusal>) -> i32 {
    match result {
        Ok(()) => OK,
        Err(Refusal::Off) => OFF,
        Err(Refusal::Limit) => LIMIT,
    }
}

pub extern "C" fn process_control(operation: u32, value: u64) -> i32 {
    let _entered = Entered::new();
    let order = match (operation, value) {
        (1, value) => Order::Start(Interval::new(value)),
        (3, 1..) => Order::Start(Interval::new(value)),
        (2, 0) => Order::Stop,
        (5, 0) => Order::Flush,
        (6, 0) => Order::Snapshot,
        (7, 0) => Order::Rotate,
        (8, 0) => Order::Reset,
        _ => return INVALID,
    };
    // Beyond 2^63 - 1 there is no interval; 0 is the one of before.
    if value != 0 && order == Order::Start(None) {
        return INVALID;
    }
    result(AGENT.order(this_thread(), order))
}

pub unsafe extern "C" fn process_status(status: *mut RawStatus) -> i32 {
    let _entered = Entered::new();
    // SAFETY: the header's rules: NULL, or a description of which the first field says how large it is.
    let Some(to) = (unsafe { status.as_mut() }) else {
        return INVALID;
    };
    if (to.size as usize) < size_of::<RawStatus>() {
        return INVALID;
    }
    let found = match AGENT.status(&mut to.profile) {
        Ok(found) => found,
        Err(refusal) => return result(Err(refusal)),
    };
    to.is_on = u32::from(found.interval.is_some());
    to.interval = found.interval.map_or(0, Interval::bytes);
    to.lost_samples = found.lost_samples;
    to.lost_bytes = found.lost_bytes;
    to.left_out_samples = found.left_out_samples;
    to.left_out_bytes = found.left_out_bytes;
    to.profile_bytes = found.profile_bytes;
    to.memory_bytes = found.memory_bytes;
    to.ring_used_bytes = found.ring_used_bytes;
    to.ring_bytes = found.ring_bytes;
    to.sample_ns = found.sample_ns;
    to.drain_ns = found.drain_ns;
    OK
}

pub extern "C" fn thread_select(tid: u32, is_on: u32) -> i32 {
    let _entered = Entered::new();
    result(AGENT.order_thread(this_thread(), tid, is_on != 0))
}

/// Mirror of `allocsample_filter`.
#[repr(C)]
pub struct RawFilter {
    size: u32,
    reserved: u32,
    least_bytes: u64,
    most_bytes: u64,
    threads: *const c_char,
}

pub unsafe extern "C" fn process_filter(filter: *const RawFilter) -> i32 {
    let _entered = Entered::new();
    // SAFETY: the header's rules: NULL, or a description of which the first field says how large it is.
    let filter = match unsafe { filter.as_ref() } {
        None => Filter::ALL,
        Some(raw) if (raw.size as usize) < size_of::<RawFilter>() => return INVALID,
        Some(raw) => {
            let name = if raw.threads.is_null() {
                Some([0; 2])
            } else {
                // SAFETY: the header's rules.
                Filter::name_words(unsafe { text_of(raw.threads) })
            };
            let Some(name) = name else {
                return INVALID;
            };
            Filter {
                least_bytes: raw.least_bytes,
                most_bytes: match raw.most_bytes {
                    0 => u64::MAX,
                    most => most,
                },
                name,
            }
        }
    };
    if filter.least_bytes > filter.most_bytes {
        return INVALID;
    }
    result(AGENT.order_filter(this_thread(), &filter))
}

pub(super) extern "C" fn thread_enable(is_on: u32) -> i32 {
    let _entered = Entered::new();
    match AGENT.enable_thread(this_thread(), is_on != 0) {
        true => OK,
        false => OFF,
    }
}
