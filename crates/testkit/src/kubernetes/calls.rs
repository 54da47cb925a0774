//! Sends many requests in parallel, like a busy cluster, and reports status and duration of each.

use super::{ApiServer, TOKEN};
use crate::namespace_command;
use crate::process;
use serde_json::Value as Json;
use std::time::Duration;

/// One HTTP request.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiRequest {
    pub method: &'static str,
    /// Including the query string.
    pub path: String,
    pub body: Option<Json>,
}

/// Outcome of a request. The status is 0 if no response was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiResponse {
    pub status: u16,
    pub took: Duration,
}

impl ApiRequest {
    /// Returns a request that creates an object in a collection.
    pub fn create(collection: &str, object: &Json) -> ApiRequest {
        ApiRequest { method: "POST", path: collection.to_owned(), body: Some(object.clone()) }
    }

    /// Returns a merge-patch request.
    pub fn merge(path: &str, patch: Json) -> ApiRequest {
        ApiRequest { method: "PATCH", path: path.to_owned(), body: Some(patch) }
    }

    pub fn get(path: &str) -> ApiRequest {
        ApiRequest { method: "GET", path: path.to_owned(), body: None }
    }

    pub fn delete(path: &str) -> ApiRequest {
        ApiRequest { method: "DELETE", path: path.to_owned(), body: None }
    }

    /// Renders the request as a section of a curl config file. curl prints `number` with the outcome.
    fn written(&self, number: usize, url: &str) -> String {
        let form = match self.method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut text = format!(
            "silent\ninsecure\nmax-time = 60\nrequest = {}\noutput = /dev/null\nurl = \"{url}{}\"\n\
             header = \"Authorization: Bearer {TOKEN}\"\nheader = \"Content-Type: {form}\"\n\
             write-out = \"{number} %{{http_code}} %{{time_total}}\\n\"\n",
            self.method, self.path
        );
        if let Some(body) = &self.body {
            let body = body.to_string().replace('\\', "\\\\").replace('"', "\\\"");
            text += &format!("data = \"{body}\"\n");
        }
        text
    }
}

impl ApiResponse {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A client that is independent of the [`ApiServer`] value, so that requests can run while the server is restarted.
#[derive(Clone, Debug)]
pub struct ApiClient {
    url: String,
    namespace: Option<String>,
}

impl ApiServer {
    pub fn caller(&self) -> ApiClient {
        ApiClient { url: self.url(), namespace: self.namespace.clone() }
    }

    pub fn call_all(&self, calls: &[ApiRequest], at_a_time: usize) -> Vec<ApiResponse> {
        self.caller().call_all(calls, at_a_time)
    }
}

impl ApiClient {
    /// Sends all requests, at most `at_a_time` in parallel and in no particular order. Responses are returned in the
    /// order of `calls`.
    pub fn call_all(&self, calls: &[ApiRequest], at_a_time: usize) -> Vec<ApiResponse> {
        let written: Vec<String> =
            calls.iter().enumerate().map(|(number, call)| call.written(number, &self.url)).collect();
        let mut command = namespace_command(self.namespace.as_deref(), "curl");
        command.args(["--parallel", "--parallel-immediate", "--parallel-max", &at_a_time.to_string()]);
        command.args(["--config", "-"]);
        let output = process::output(&mut command, &written.join("next\n"));
        let mut answers = vec![ApiResponse::default(); calls.len()];
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.split_whitespace();
            let number = words.next().and_then(|word| word.parse::<usize>().ok());
            let status = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
            let seconds = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
            if let Some(answer) = number.and_then(|number| answers.get_mut(number)) {
                *answer = ApiResponse { status, took: Duration::from_secs_f64(seconds) };
            }
        }
        answers
    }
}
