//! Promise: every sampled object of Java's heap has its own class for a type, whatever else its line allocates.

use crate::support::compile;
use crate::support::room::stderr;
use serde_json::{Value, json};

#[test]
fn objects_of_many_classes_from_one_line_have_the_right_type_each_also_when_classes_are_unloaded() {
    for jdk in compile::jdks() {
        let room = compile::java_by(&jdk.join("bin/javac"), "TypesOfLine.java");
        let java = jdk.join("bin/java");
        let java = java.to_str().expect("a path");
        let run = ["run", "-q", "--interval", "1", "-o", "x.allocsample", "--"];
        let program = [java, "-Xint", "-XX:+UseSerialGC", "TypesOfLine"];
        let output = room.output(&[&run[..], &program].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        // The JVM also makes classes there.
        let sql = "SELECT type, count(*) AS samples FROM samples JOIN types USING (type_id) JOIN stacks USING (stack_id) \
            WHERE stack LIKE '%TypesOfLine.make;%.newArray' AND type LIKE '%[]' GROUP BY type ORDER BY type";
        let output = room.output(&["query", "x.allocsample", sql, "--format", "json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let found: Value = serde_json::from_slice(&output.stdout).expect("rows");
        let types = [
            "TypesOfLine$Loaded[]",
            "byte[]",
            "double[]",
            "float[]",
            "int[]",
            "java.lang.String[]",
            "long[]",
            "short[]",
        ];
        let wanted = types.map(|name| json!({"type": name, "samples": 300}));
        assert_eq!(found, json!(wanted));
    }
}
