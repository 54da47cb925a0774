//! A request of a runtime, as passed on by the plugin.

use super::config::NetworkConfig;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tortie_cni::{CniError, CniPlugin, code};

/// The JSON form of a request on the socket.
#[derive(Debug, Deserialize)]
struct RequestJson {
    plugin: String,
    command: String,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    own_netns: bool,
    #[serde(default)]
    config: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CniCommand {
    Add,
    Del,
    Check,
    Gc,
    Status,
    /// `calico -t`: tests whether the node is ready.
    Test,
}

#[derive(Clone, Debug)]
pub struct CniRequest {
    pub plugin: CniPlugin,
    pub command: CniCommand,
    pub container_id: String,
    /// Empty in a DEL if the runtime no longer knows the namespace.
    pub netns: String,
    pub ifname: String,
    pub args: CniArgs,
    /// CNI_ARGS as given, for delegated plugins.
    pub args_text: String,
    pub path: Vec<PathBuf>,
    pub config: NetworkConfig,
    pub whole_config: Map<String, Value>,
    /// Labels of the container's Kubernetes namespace, if known: pools may be limited to some namespaces.
    pub namespace_labels: BTreeMap<String, String>,
}

/// The keys of CNI_ARGS that we use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniArgs {
    pub ip: Option<String>,
    pub pod_namespace: String,
    pub pod_name: String,
}

impl CniArgs {
    fn parse(text: &str) -> Result<CniArgs, CniError> {
        let mut args = CniArgs::default();
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(CniError::new(code::ENVIRONMENT, format!("CNI_ARGS: {pair:?} is not key=value")));
            };
            match key {
                "IP" if !value.is_empty() => args.ip = Some(value.to_owned()),
                "K8S_POD_NAMESPACE" => args.pod_namespace = value.to_owned(),
                "K8S_POD_NAME" => args.pod_name = value.to_owned(),
                _ => {}
            }
        }
        Ok(args)
    }
}

impl CniRequest {
    pub fn parse(text: &[u8]) -> Result<CniRequest, CniError> {
        let wire: RequestJson = serde_json::from_slice(text)
            .map_err(|e| CniError::new(code::DECODE, "failed to decode the request").with(e.to_string()))?;
        let plugin = CniPlugin::from_name(&wire.plugin)
            .ok_or_else(|| refuse_environment(format!("unknown plugin {:?}", wire.plugin)))?;
        let command = match wire.command.as_str() {
            "ADD" => CniCommand::Add,
            "DEL" => CniCommand::Del,
            "CHECK" => CniCommand::Check,
            "GC" => CniCommand::Gc,
            "STATUS" => CniCommand::Status,
            "TEST" => CniCommand::Test,
            other => return Err(refuse_environment(format!("unknown CNI_COMMAND: {other}"))),
        };
        let variable = |name: &str| wire.env.get(name).cloned().unwrap_or_default();
        let needed: &[&str] = match command {
            CniCommand::Add | CniCommand::Check => {
                &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"]
            }
            CniCommand::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            CniCommand::Gc | CniCommand::Status => &["CNI_PATH"],
            CniCommand::Test => &[],
        };
        let missing: Vec<&str> = needed.iter().copied().filter(|name| variable(name).is_empty()).collect();
        if !missing.is_empty() {
            return Err(refuse_environment(format!(
                "required env variables [{}] missing",
                missing.join(",")
            )));
        }
        let container_id = variable("CNI_CONTAINERID");
        let ifname = variable("CNI_IFNAME");
        if matches!(command, CniCommand::Add | CniCommand::Check | CniCommand::Del) {
            check_container_id(&container_id)?;
            check_interface(&ifname)?;
        }
        let (config, whole_config) = NetworkConfig::parse(&wire.config)?;
        let minimum_version = match command {
            CniCommand::Check => Some("0.4.0"),
            CniCommand::Gc | CniCommand::Status => Some("1.1.0"),
            CniCommand::Add | CniCommand::Del | CniCommand::Test => None,
        };
        if minimum_version.is_some_and(|minimum| !config.is_at_least(minimum)) {
            let message = format!("config version does not allow {}", wire.command);
            return Err(CniError::new(code::INCOMPATIBLE_VERSION, message));
        }
        let overridden = matches!(variable("CNI_NETNS_OVERRIDE").as_str(), "TRUE" | "true" | "1");
        if wire.own_netns && !overridden && matches!(command, CniCommand::Add | CniCommand::Del) {
            return Err(CniError::new(
                code::SAME_NAMESPACE,
                "the container's network namespace is the one the plugin runs in",
            )
            .with("set CNI_NETNS_OVERRIDE=1 if that is meant"));
        }
        let args_text = variable("CNI_ARGS");
        Ok(CniRequest {
            plugin,
            command,
            container_id,
            netns: variable("CNI_NETNS"),
            ifname,
            args: CniArgs::parse(&args_text)?,
            args_text,
            path: std::env::split_paths(&variable("CNI_PATH")).collect(),
            config,
            whole_config,
            namespace_labels: BTreeMap::new(),
        })
    }
}

/// Validates a container id. Also limits its length, because it becomes part of file names and keys.
pub(super) fn check_container_id(id: &str) -> Result<(), CniError> {
    let fits = id.len() <= 200
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.bytes().all(|c| c.is_ascii_alphanumeric() || b"_.-".contains(&c));
    if fits {
        return Ok(());
    }
    Err(CniError::new(code::ENVIRONMENT, "invalid characters in containerID").with(id))
}

fn refuse_environment(message: String) -> CniError {
    CniError::new(code::ENVIRONMENT, message)
}

pub(super) fn check_interface(name: &str) -> Result<(), CniError> {
    let message = match name {
        "." | ".." => "interface name is . or ..",
        _ if name.len() > 15 => "interface name is too long",
        _ if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) => {
            "interface name contains / or : or whitespace characters"
        }
        _ => return Ok(()),
    };
    Err(CniError::new(code::ENVIRONMENT, message).with(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(command: &str, env: Value, config: &str) -> Result<CniRequest, CniError> {
        let wire = json!({"plugin": "calico", "command": command, "env": env, "config": config});
        CniRequest::parse(wire.to_string().as_bytes())
    }

    fn env() -> Value {
        json!({"CNI_CONTAINERID": "c1", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0", "CNI_PATH": "/a:/b"})
    }

    const CONFIG: &str = r#"{"name":"net","cniVersion":"1.1.0"}"#;

    #[test]
    fn a_good_request_is_read() {
        let mut env = env();
        env["CNI_ARGS"] = json!("IgnoreUnknown=1;IP=10.0.0.9;K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop");
        let request = request("ADD", env, CONFIG).unwrap();
        assert_eq!(request.path, [PathBuf::from("/a"), PathBuf::from("/b")]);
        let args =
            CniArgs { ip: Some("10.0.0.9".into()), pod_namespace: "shop".into(), pod_name: "web".into() };
        assert_eq!(request.args, args);
    }

    #[test]
    fn what_is_wrong_has_its_code() {
        let code_of = |command: &str, change: &[(&str, &str)], config: &str| {
            let mut env = env();
            for (name, value) in change {
                env[*name] = json!(value);
            }
            request(command, env, config).unwrap_err().code
        };
        assert_eq!(code_of("FLY", &[], CONFIG), code::ENVIRONMENT);
        assert_eq!(code_of("ADD", &[("CNI_NETNS", "")], CONFIG), code::ENVIRONMENT);
        assert_eq!(code_of("ADD", &[("CNI_CONTAINERID", "../x")], CONFIG), code::ENVIRONMENT);
        assert_eq!(code_of("ADD", &[("CNI_IFNAME", "a/b")], CONFIG), code::ENVIRONMENT);
        assert_eq!(code_of("ADD", &[("CNI_IFNAME", "aaaaaaaaaaaaaaaa")], CONFIG), code::ENVIRONMENT);
        assert_eq!(code_of("ADD", &[("CNI_ARGS", "x")], CONFIG), code::ENVIRONMENT);
        assert_eq!(code_of("ADD", &[], "{"), code::DECODE);
        let old = r#"{"name":"net","cniVersion":"0.3.1"}"#;
        assert_eq!(code_of("CHECK", &[], old), code::INCOMPATIBLE_VERSION);
        assert_eq!(code_of("GC", &[], old), code::INCOMPATIBLE_VERSION);
        assert_eq!(CniRequest::parse(b"nonsense").unwrap_err().code, code::DECODE);
    }

    #[test]
    fn del_needs_no_namespace() {
        let mut env = env();
        env["CNI_NETNS"] = json!("");
        assert!(request("DEL", env, CONFIG).is_ok());
    }
}
