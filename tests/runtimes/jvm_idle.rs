//! Promise: a JVM in which no thread allocates still obeys `ctl`.

use crate::support::Room;
use crate::support::collected::AtWork;
use crate::support::compile;

/// Without a compiler, whose threads allocate now and then. Each request comes to a JVM that has done nothing since the last one.
#[test]
fn an_idle_jvm_collects_on_request_each_time() {
    const KNOWN: f64 = 5_000.0 * 1_016.0;
    for jdk in compile::jdks() {
        let compiled = compile::java_by(&jdk.join("bin/javac"), "Idle.java");
        let classes = compiled.directory().to_string_lossy();
        let java = jdk.join("bin/java");
        let java = java.to_str().expect("a path");
        for collector in ["-XX:+UseSerialGC", "-XX:+UseG1GC"] {
            let program = [java, collector, "-Xint", "-cp", &classes, "Idle"];
            let java = AtWork::start(Room::new(), &["--interval", "8K"], &program);
            java.assert_java_keeps(KNOWN, collector);
            java.end();
        }
    }
}
