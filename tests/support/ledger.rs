//! What `allocsample memory` prints, as JSON.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Room;
use super::room::stderr;

const MIB: f64 = (1 << 20) as f64;

/// The ledger of a profile.
pub fn ledger(room: &Room, what: &str) -> Value {
    let output = room.output(&["memory", "--format", "json", what]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Resident MiB by account.
pub fn accounts(moment: &Value) -> BTreeMap<String, f64> {
    let mut accounts = BTreeMap::new();
    for row in moment["rows"].as_array().expect("rows") {
        let account = row["account"].as_str().expect("an account").to_owned();
        *accounts.entry(account).or_default() +=
            row["resident_bytes"].as_f64().expect("bytes") / MIB;
    }
    accounts
}

/// The rows of a moment add up to what is resident.
pub fn assert_adds_up(moment: &Value) {
    let sum: f64 = accounts(moment).values().sum();
    let resident = moment["resident_bytes"].as_f64().expect("bytes") / MIB;
    assert!((sum - resident).abs() < 0.01, "{sum} {resident}");
}
