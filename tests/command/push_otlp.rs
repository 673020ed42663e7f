//! Promise: an OpenTelemetry Collector gets what a running process records, each byte once, also while the recording goes
//! on in other files.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use crate::support::running::{BYTES, Running};
use crate::support::truth;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message;

/// Takes a push and answers it with `answer`.
fn take(stream: &TcpStream, answer: &[u8]) -> (String, ExportProfilesServiceRequest) {
    let mut input = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        input.read_line(&mut head).expect("a line");
    }
    let head = head.to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.expect("a length").parse().expect("a number")];
    input.read_exact(&mut body).expect("the body");
    let status = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.len()
    );
    let mut output = stream;
    output.write_all(status.as_bytes()).expect("it reads");
    output.write_all(answer).expect("it reads");
    let request = ExportProfilesServiceRequest::decode(&body[..]).expect("OTLP");
    (head, request)
}

/// Sums of the values by the name of their type.
fn sums(request: &ExportProfilesServiceRequest) -> BTreeMap<String, f64> {
    let dictionary = request.dictionary.as_ref().expect("a dictionary");
    let profiles = &request.resource_profiles[0].scope_profiles[0].profiles;
    let sum = |profile: &opentelemetry_proto::tonic::profiles::v1development::Profile| {
        let kind = profile.sample_type.expect("a type").type_strindex;
        let name = &dictionary.string_table[usize::try_from(kind).expect("a number")];
        let values = profile.samples.iter().flat_map(|sample| &sample.values);
        (name.clone(), values.sum::<i64>() as f64)
    };
    profiles.iter().map(sum).collect()
}

fn attributes(request: &ExportProfilesServiceRequest) -> BTreeMap<String, String> {
    let resource = request.resource_profiles[0].resource.as_ref();
    let attributes = &resource.expect("a resource").attributes;
    let text = |value: Option<Value>| match value {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?}"),
    };
    attributes
        .iter()
        .map(|it| {
            let value = it.value.clone().and_then(|value| value.value);
            (it.key.clone(), text(value))
        })
        .collect()
}

#[test]
fn what_was_allocated_arrives_once_also_past_a_change_of_file_and_a_rejection() {
    // On a busy machine samples would be lost, and counted.
    let options = [
        "--interval",
        "16K",
        "--rotate-size",
        "64K",
        "--on-full",
        "wait",
    ];
    let mut running = Running::start(&options);
    running.phase();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let push = running
        .room
        .command(&["push", "x.allocsample", "--to", &url, "--protocol", "otlp"])
        .args(["--every", "1", "--label", "env=test"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command");
    let (tell_first, is_first_there) = std::sync::mpsc::channel();
    let serving = std::thread::spawn(move || {
        let rejected = ExportProfilesServiceResponse {
            partial_success: Some(ExportProfilesPartialSuccess {
                rejected_profiles: 4,
                error_message: "not now".into(),
            }),
        };
        let (first, _) = listener.accept().expect("a push");
        let (_, refused) = take(&first, &rejected.encode_to_vec());
        drop(first);
        tell_first.send(()).expect("the test waits");
        let mut accepted = Vec::new();
        // Until push has ended, which is told by a connection that sends nothing.
        loop {
            let (stream, _) = listener.accept().expect("a push");
            if stream.peek(&mut [0]).expect("a socket") == 0 {
                return (refused, accepted);
            }
            accepted.push(take(&stream, &[]));
        }
    });
    // What comes from here on is after its first look at the profile, however late that was.
    is_first_there.recv().expect("a push");
    for _ in 0..3 {
        running.phase();
    }
    let (room, _) = running.end();
    let output = push.wait_with_output().expect("push");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("4 of 4 kinds of values rejected: not now"),
        "{said}"
    );
    drop(TcpStream::connect(url.trim_start_matches("http://")).expect("the server"));
    let (refused, accepted) = serving.join().expect("no panic");
    let (head, first) = &accepted[0];
    assert!(
        head.starts_with("post /v1development/profiles http/1.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains("content-type: application/x-protobuf\r\n"),
        "{head}"
    );
    let attributes = attributes(first);
    assert_eq!(attributes["service.name"], "phases");
    assert_eq!(attributes["env"], "test");
    let names: Vec<String> = sums(first).into_keys().collect();
    let expected = [
        "alloc_objects",
        "alloc_space",
        "inuse_objects",
        "inuse_space",
    ];
    assert_eq!(names, expected);
    assert!(sums(&refused).contains_key("inuse_space"));

    // Phases, and a block of 64 MiB that is a sample for certain. Files that were complete before the first push are not
    // in it.
    let parts = room
        .names()
        .into_iter()
        .filter(|name| name.contains(".part-"));
    assert!(parts.count() > 0, "{:?}", room.names());
    let total: f64 = accepted.iter().map(|(_, it)| sums(it)["alloc_space"]).sum();
    let all = room.output(&["join", "x.allocsample", "-o", "all.allocsample"]);
    assert!(all.status.success());
    let phases = f64::from(BYTES);
    // A sample of 1,000 bytes stands for 16,900 at this interval.
    let error = 3.0 * phases / (3.0 * phases / 16_900.0).sqrt();
    let found = total - f64::from(64 << 20);
    // The three phases during which it was pushed are there, and nothing twice.
    assert!(truth::z(found, 3.0 * phases, error) > -4.0, "{found}");
    let error = 4.0 * phases / (4.0 * phases / 16_900.0).sqrt();
    assert!(truth::z(found, 4.0 * phases, error) < 4.0, "{found}");
    let (_, last) = accepted.last().expect("one");
    let functions = &last.dictionary.as_ref().expect("a dictionary").string_table;
    assert!(
        functions.iter().any(|name| name == "phase_again"),
        "{functions:?}"
    );
}
