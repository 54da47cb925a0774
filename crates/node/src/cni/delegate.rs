//! Calls other IPAM plugins: finds them in CNI_PATH and runs them as a runtime would.

use super::request::CniRequest;
use super::result::CniResult;
use crate::journal::{AttachmentId, DelegatedIpam};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tortie_cni::{CniError, code};

/// Time after which a plugin that has not ended is killed.
const IPAM_PLUGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a plugin's output, in bytes.
const MAX_PLUGIN_OUTPUT_BYTES: u64 = 1 << 20;

impl DelegatedIpam {
    /// Returns the plugin that the configuration names, with the pod CIDRs of the node in place of `usePodCidr`.
    pub fn from_request(request: &CniRequest, pod_cidrs: &[String]) -> Result<DelegatedIpam, CniError> {
        let mut config = request.whole_config.clone();
        if request.config.ipam.kind == "host-local"
            && let Some(Value::Object(ipam)) = config.get_mut("ipam")
        {
            fill_pod_cidrs(ipam, pod_cidrs)?;
        }
        Ok(DelegatedIpam {
            plugin: request.config.ipam.kind.clone(),
            config: Value::Object(config).to_string(),
            args: clean_arguments(&request.args_text),
            path: request.path.clone(),
        })
    }

    /// Returns whether the configuration refers to the pod CIDRs of the node.
    pub fn wants_pod_cidrs(request: &CniRequest) -> bool {
        let ipam = request.whole_config.get("ipam").map(Value::to_string).unwrap_or_default();
        request.config.ipam.kind == "host-local" && ipam.to_lowercase().contains("usepodcidr")
    }

    pub async fn add(&self, id: &AttachmentId, netns: &str) -> Result<CniResult, CniError> {
        let text = self.run("ADD", id, netns).await?;
        let value: Value = serde_json::from_str(&text).map_err(|error| self.invalid_result(&error))?;
        let result = CniResult::parse(&value).map_err(|error| self.invalid_result(&error))?;
        if result.ips.is_empty() {
            return Err(CniError::new(code::FAILED, "the IPAM plugin returned no IP address"));
        }
        Ok(result)
    }

    pub async fn del(&self, id: &AttachmentId, netns: &str) -> Result<(), CniError> {
        self.run("DEL", id, netns).await.map(|_| ())
    }

    fn invalid_result(&self, reason: &dyn std::error::Error) -> CniError {
        CniError::new(code::DECODE, format!("IPAM plugin {}: invalid result: {reason}", self.plugin))
    }

    async fn run(&self, command: &str, id: &AttachmentId, netns: &str) -> Result<String, CniError> {
        let failed = |reason: String| {
            CniError::new(code::FAILED, format!("IPAM plugin {} {command}: {reason}", self.plugin))
        };
        let program = self.find_program()?;
        let mut child = tokio::process::Command::new(program)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &id.container_id)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", &id.ifname)
            .env("CNI_ARGS", &self.args)
            .env("CNI_PATH", std::env::join_paths(&self.path).unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let exchange = async {
            if let Some(mut stdin) = stdin {
                // A plugin that fails early may not read its whole input. Its output contains the reason.
                let _ = stdin.write_all(self.config.as_bytes()).await;
            }
            let mut text = String::new();
            if let Some(stdout) = stdout {
                stdout.take(MAX_PLUGIN_OUTPUT_BYTES).read_to_string(&mut text).await?;
            }
            Ok::<_, std::io::Error>((child.wait().await?, text))
        };
        let (status, text) = tokio::time::timeout(IPAM_PLUGIN_TIMEOUT, exchange)
            .await
            .map_err(|_| {
                failed(format!("the plugin did not end within {} seconds", IPAM_PLUGIN_TIMEOUT.as_secs()))
            })?
            .map_err(|error| failed(error.to_string()))?;
        if status.success() {
            return Ok(text);
        }
        // Return the error of the plugin unchanged, because its code determines how the runtime reacts.
        let error: Value = serde_json::from_str(&text).unwrap_or_default();
        let number = error.get("code").and_then(Value::as_u64).and_then(|code| u32::try_from(code).ok());
        match number {
            Some(code) => {
                let message = error["msg"].as_str().unwrap_or_default();
                Err(CniError::new(code, message).with(error["details"].as_str().unwrap_or_default()))
            }
            None => Err(failed(format!("{status}: {}", text.trim()))),
        }
    }

    /// Returns the path of the plugin's executable.
    pub fn find_program(&self) -> Result<PathBuf, CniError> {
        // A name that contains a path could refer to a file outside of CNI_PATH.
        let is_plain_name = !self.plugin.contains('/') && !self.plugin.starts_with('.');
        let found = is_plain_name
            .then(|| self.path.iter().map(|dir| dir.join(&self.plugin)).find(|path| path.is_file()));
        found.flatten().ok_or_else(|| {
            CniError::new(
                code::FAILED,
                format!("failed to find plugin {:?} in path {:?}", self.plugin, self.path),
            )
        })
    }
}

/// Returns CNI_ARGS for a plugin that may not know all keys. Removes empty pairs, because plugins reject them.
fn clean_arguments(given: &str) -> String {
    let given = given.split(';').filter(|pair| !pair.is_empty());
    std::iter::once("IgnoreUnknown=1").chain(given).collect::<Vec<_>>().join(";")
}

/// Replaces `usePodCidr` and `usePodCidrIPv6` in the configuration by the pod CIDRs of the node.
fn fill_pod_cidrs(ipam: &mut Map<String, Value>, pod_cidrs: &[String]) -> Result<(), CniError> {
    fill_subnet(ipam, pod_cidrs)?;
    for range in ipam.get_mut("ranges").and_then(Value::as_array_mut).into_iter().flatten() {
        for part in range.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            fill_subnet(part, pod_cidrs)?;
        }
    }
    Ok(())
}

fn fill_subnet(object: &mut Map<String, Value>, pod_cidrs: &[String]) -> Result<(), CniError> {
    let subnet = object.get("subnet").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    let (placeholder, family, v6) = match subnet.as_str() {
        "usepodcidr" => ("usePodCidr", "IPv4", false),
        "usepodcidripv6" => ("usePodCidrIPv6", "IPv6", true),
        _ => return Ok(()),
    };
    let cidr = pod_cidrs.iter().find(|cidr| cidr.contains(':') == v6).ok_or_else(|| {
        CniError::new(code::FAILED, format!("{placeholder} found but there is no {family} CIDR configured"))
    })?;
    object.insert("subnet".to_owned(), json!(cidr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_arguments_are_removed() {
        assert_eq!(clean_arguments(""), "IgnoreUnknown=1");
        assert_eq!(clean_arguments("IP=10.0.0.1;"), "IgnoreUnknown=1;IP=10.0.0.1");
    }

    #[test]
    fn pod_cidrs_replace_placeholders() {
        let ipam = json!({"subnet": "usePodCidr", "ranges": [[{"subnet": "usePodCidrIPv6"}], [{"subnet": "10.9.0.0/24"}]]});
        let Value::Object(mut ipam) = ipam else { unreachable!() };
        let cidrs = ["10.1.0.0/24".to_owned(), "fd00::/64".to_owned()];
        fill_pod_cidrs(&mut ipam, &cidrs).unwrap();
        assert_eq!(ipam["subnet"], "10.1.0.0/24");
        assert_eq!(ipam["ranges"], json!([[{"subnet": "fd00::/64"}], [{"subnet": "10.9.0.0/24"}]]));
        ipam.insert("subnet".into(), json!("USEPODCIDR"));
        assert_eq!(
            fill_pod_cidrs(&mut ipam, &[]).unwrap_err().message,
            "usePodCidr found but there is no IPv4 CIDR configured"
        );
    }
}
