//! Queries that would take all time or memory. SQLite's limit of memory is that of a process: no other test is beside these.

use std::sync::Arc;
use std::time::Duration;

use allocsample_query::{Database, QueryError};

#[test]
fn a_query_without_end_ends() {
    let mut database = Database::new(Arc::default()).unwrap();
    let endless = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT";
    let timeout = Some(Duration::from_millis(50));
    let counted = database.query(&format!("{endless} max(x) FROM t"), timeout);
    assert!(
        matches!(counted, Err(QueryError::TooSlow(_))),
        "{counted:?}"
    );
    database.allow(100_000);
    let listed = database.query(&format!("{endless} x FROM t"), None);
    assert!(matches!(listed, Err(QueryError::TooLarge(_))), "{listed:?}");
    let long = database.query("SELECT zeroblob(1000000000)", None);
    assert!(matches!(long, Err(QueryError::TextTooLong)), "{long:?}");
    let pattern = "SELECT '' LIKE printf('%.*c', 2000, '%')";
    assert!(database.query(pattern, None).is_err());
    let one = database.query("SELECT 1", timeout).unwrap();
    assert_eq!(one.number(0, 0), Some(1.0));
}
