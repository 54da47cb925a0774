//! The environment variables of the node, except for the parameters `FELIX_*`, which docs/settings.md describes.
//! docs/reference/node-variables.md is generated from this table.

/// An environment variable that the node reads.
#[derive(Clone, Copy, Debug)]
pub struct NodeVariable {
    pub name: &'static str,
    /// The value that applies if the variable is not set; empty if no default exists.
    pub default: &'static str,
    pub meaning: &'static str,
}

/// Variables of one subject.
#[derive(Clone, Copy, Debug)]
pub struct VariableGroup {
    pub title: &'static str,
    pub variables: &'static [NodeVariable],
}

/// Returns whether the node reads the variable: it is in the table, or a parameter of docs/settings.md.
pub fn is_node_variable(name: &str) -> bool {
    let mut variables = NODE_VARIABLES.iter().flat_map(|group| group.variables);
    name.starts_with("FELIX_") || variables.any(|variable| variable.name == name)
}

const fn variable(name: &'static str, default: &'static str, meaning: &'static str) -> NodeVariable {
    NodeVariable { name, default, meaning }
}

#[rustfmt::skip]
pub const NODE_VARIABLES: &[VariableGroup] = &[
    VariableGroup { title: "Name and addresses", variables: &[
        variable("NODENAME", "", "name of the node. If it is not set: `FelixHostname`, else the name in the file `nodename` of an earlier start, else `HOSTNAME` in lower case, else the host name in lower case"),
        variable("HOSTNAME", "", "see `NODENAME`"),
        variable("IP", "", "IPv4 address of the node: an address, with or without prefix length; `autodetect`; `none` (keep the stored address, do not detect). If it is not set, the stored address is kept, or detected if there is none"),
        variable("IP6", "", "the same for IPv6, but without a value it is never detected"),
        variable("IP_AUTODETECTION_METHOD", "first-found", "how the IPv4 address is [detected](#address-detection)"),
        variable("IP6_AUTODETECTION_METHOD", "first-found", "how the IPv6 address is detected"),
        variable("AUTODETECT_POLL_INTERVAL", "60s", "interval between comparisons of the host's addresses with the Node object, as a duration (`30s`, `2m`)"),
        variable("DISABLE_NODE_IP_CHECK", "false", "start although another node has the same address"),
    ]},
    VariableGroup { title: "Routes and BGP", variables: &[
        variable("CALICO_NETWORKING_BACKEND", "", "any value except `none` and `vxlan`, such as `bird`, and no value: BGP, which the node implements itself. `vxlan`: no BGP. `none`: no BGP, and the node does not determine its addresses. On a cluster that uses BGP, a node with `none` or `vxlan` has no routes to other nodes' pods ([BGP](../bgp.md))"),
        variable("AS", "", "AS number of the node, written to its Node object; if it is not set, the one in the datastore applies"),
        variable("CALICO_ROUTER_ID", "", "BGP identifier: an IPv4 address, or `hash` to derive it from the name of the node. If it is not set, the IPv4 address of the node; a node without one needs this variable"),
        variable("TORTIE_BGP_MAX_PREFIXES", "2000000", "largest number of routes of one family from a BGP peer (`--bgp-max-prefixes`)"),
        variable("TORTIE_BGP_MAX_PATHS", "64", "largest number of paths to one prefix from a BGP peer (`--bgp-max-paths`)"),
        variable("TORTIE_BIRD", "false", "leave BGP to a BIRD 2 beside the node (`--bird`)"),
        variable("TORTIE_BIRD_CONFIG", "/etc/calico/confd/config/bird.cfg", "configuration that the node writes for BIRD (`--bird-config`)"),
        variable("TORTIE_BIRD_SOCKET", "/var/run/calico/bird.ctl", "control socket of BIRD (`--bird-socket`)"),
        variable("TORTIE_SECRETS_DIR", "/etc/calico/secrets", "directory with passwords of BGP sessions (`--secrets-dir`)"),
        variable("NAMESPACE", "", "namespace of the Secrets with [passwords of BGP sessions](../bgp.md#passwords); by default `POD_NAMESPACE`, else `kube-system`"),
    ]},
    VariableGroup { title: "Default IP pools", variables: &[
        variable("NO_DEFAULT_POOLS", "false", "create no pools; an error together with a CIDR below"),
        variable("CALICO_IPV4POOL_CIDR", "", "IPv4 pool, created as `default-ipv4-ippool` if no IPv4 pool exists; `none` for no pool. If it is not set, 192.168.0.0/16, or the first of 172.16.0.0/16 to 172.31.0.0/16 in which the host has no address"),
        variable("CALICO_IPV4POOL_BLOCK_SIZE", "26", "prefix length of its blocks"),
        variable("CALICO_IPV4POOL_IPIP", "Never", "its `ipipMode`: `Never`, `CrossSubnet` or `Always`"),
        variable("CALICO_IPV4POOL_VXLAN", "Never", "its `vxlanMode`"),
        variable("CALICO_IPV4POOL_NAT_OUTGOING", "true", "its `natOutgoing`"),
        variable("CALICO_IPV4POOL_NODE_SELECTOR", "all()", "its `nodeSelector`"),
        variable("CALICO_IPV4POOL_DISABLE_BGP_EXPORT", "false", "its `disableBGPExport`"),
        variable("CALICO_IPV6POOL_CIDR", "", "IPv6 pool, created as `default-ipv6-ippool` if no IPv6 pool exists and the kernel and `FELIX_IPV6SUPPORT` allow IPv6; `none` for no pool. If it is not set, a random unique local /48"),
        variable("CALICO_IPV6POOL_BLOCK_SIZE", "122", "prefix length of its blocks"),
        variable("CALICO_IPV6POOL_VXLAN", "Never", "its `vxlanMode`"),
        variable("CALICO_IPV6POOL_NAT_OUTGOING", "false", "its `natOutgoing`"),
        variable("CALICO_IPV6POOL_NODE_SELECTOR", "all()", "its `nodeSelector`"),
        variable("CALICO_IPV6POOL_DISABLE_BGP_EXPORT", "false", "its `disableBGPExport`"),
    ]},
    VariableGroup { title: "Cluster and Kubernetes", variables: &[
        variable("CLUSTER_TYPE", "", "added to `clusterType` of the ClusterInformation"),
        variable("CALICO_K8S_NODE_REF", "", "name of the node in Kubernetes if it differs or if Kubernetes is not the datastore: written to the Node object, and its condition `NetworkUnavailable` is maintained"),
        variable("USE_POD_CIDR", "false", "pods get addresses of the node's pod CIDR: the node allocates no tunnel addresses from pools"),
        variable("TORTIE_STARTUP_TAINT", "", "taint that the node removes from its Kubernetes node when the network is ready"),
        variable("TORTIE_HUB_SECRET", "", "Secret with the certificate that [hubs](../hub.md) issue for nodes"),
        variable("POD_NAMESPACE", "", "namespace of the node's pod; also that of the service account of the CNI plugins, by default the namespace of the pod or `kube-system`"),
        variable("TORTIE_DAEMONSET", "", "DaemonSet of the node; with `POD_NAMESPACE` and `TORTIE_SERVICE_ACCOUNT`, the node cleans its host when that DaemonSet is deleted"),
        variable("TORTIE_SERVICE_ACCOUNT", "", "service account of the node; see `TORTIE_DAEMONSET`"),
        variable("KUBERNETES_SERVICE_HOST", "", "set by Kubernetes in every pod: address of kube-apiserver. Without other settings of a datastore, it selects Kubernetes as the datastore"),
        variable("KUBERNETES_SERVICE_PORT", "", "set by Kubernetes in every pod: port of kube-apiserver"),
    ]},
    VariableGroup { title: "Datastore", variables: &[
        variable("DATASTORE_TYPE", "", "`etcdv3` (also for the embedded store) or `kubernetes`. If it is not set, etcd if its endpoints are set, else Kubernetes if it is configured, else the embedded store"),
        variable("ETCD_ENDPOINTS", "", "URLs of etcd, separated by commas: `http://`, `https://` or `unix://`"),
        variable("ETCD_DISCOVERY_SRV", "", "DNS domain whose SRV records name the etcd servers"),
        variable("ETCD_USERNAME", "", "user of etcd"),
        variable("ETCD_PASSWORD", "", "password of that user"),
        variable("ETCD_KEY_FILE", "", "file with the client key"),
        variable("ETCD_CERT_FILE", "", "file with the client certificate"),
        variable("ETCD_CA_CERT_FILE", "", "file with the CA of etcd"),
        variable("TORTIE_DATASTORE_SOCKET", "/run/tortie/datastore.sock", "socket of the embedded store, used if no datastore is configured and the socket exists"),
        variable("TLS_MIN_VERSION", "", "least TLS version of connections to etcd"),
        variable("TLS_CIPHER_SUITES", "", "cipher suites of connections to etcd"),
        variable("KUBECONFIG", "", "kubeconfig for kube-apiserver"),
        variable("K8S_CURRENT_CONTEXT", "", "context of the kubeconfig"),
        variable("K8S_API_ENDPOINT", "", "URL of kube-apiserver"),
        variable("K8S_KEY_FILE", "", "file with the client key"),
        variable("K8S_CERT_FILE", "", "file with the client certificate"),
        variable("K8S_CA_FILE", "", "file with the CA of kube-apiserver"),
        variable("CALICO_K8SAPITOKEN", "", "bearer token for kube-apiserver"),
        variable("K8S_INSECURE_SKIP_TLS_VERIFY", "false", "do not verify the certificate of kube-apiserver"),
        variable("K8S_DISABLE_NODE_POLL", "false", "accepted, without effect"),
        variable("K8S_CLIENT_QPS", "", "accepted, without effect"),
        variable("K8S_CLIENT_BURST", "", "accepted, without effect"),
        variable("CALICO_API_GROUP", "", "API group of Calico's resources in Kubernetes, `projectcalico.org/v3` or `crd.projectcalico.org/v1`; if it is not set, the node discovers it"),
        variable("TORTIE_ABSENCE_GRACE_SECONDS", "30", "time for which lists must agree that most objects are gone before the node believes it ([Kubernetes](../kubernetes.md#what-is-believed))"),
    ]},
    VariableGroup { title: "Installation of the CNI plugins", variables: &[
        variable("TORTIE_INSTALL_CNI", "false", "install the plugins and their configuration (`--install-cni`); the variables below apply only then"),
        variable("CNI_BIN_DIR", "/opt/cni/bin", "directory of the plugins"),
        variable("CNI_NET_DIR", "/etc/cni/net.d", "directory of the network configuration"),
        variable("CNI_CONF_NAME", "10-calico.conflist", "file of the network configuration"),
        variable("CNI_OLD_CONF_NAME", "", "file of another installation that is set aside until Tortie's is removed; by default `CNI_CONF_NAME`"),
        variable("UPDATE_CNI_BINARIES", "true", "replace plugins that exist"),
        variable("CNI_NETWORK_CONFIG", "", "network configuration; `__NAME__` is replaced by the value of the variables marked with * and of `DATASTORE_TYPE`, `KUBECONFIG_FILEPATH` and `ETCD_*`"),
        variable("CNI_NETWORK_CONFIG_FILE", "", "file with the network configuration, instead of `CNI_NETWORK_CONFIG`"),
        variable("CNI_MTU", "0", "* MTU of pods; 0 derives it"),
        variable("CNI_ASSIGN_IPV6", "false", "pods get IPv6 addresses too, if the configuration is the built-in one"),
        variable("KUBERNETES_NODE_NAME", "", "* name of the node in the configuration; by default the name of the node"),
        variable("REQUIRE_MTU_FILE", "false", "* value for the configuration"),
        variable("LOG_LEVEL", "info", "* value for the configuration"),
        variable("LOG_FILE_PATH", "/var/log/calico/cni/cni.log", "* value for the configuration"),
        variable("LOG_FILE_MAX_SIZE", "100", "* value for the configuration"),
        variable("LOG_FILE_MAX_AGE", "30", "* value for the configuration"),
        variable("LOG_FILE_MAX_COUNT", "10", "* value for the configuration"),
        variable("SERVICEACCOUNT_TOKEN", "", "* value for the configuration"),
        variable("CALICO_CNI_SERVICE_ACCOUNT", "tortie-cni-plugin", "service account whose token the plugins' kubeconfig contains"),
        variable("CNI_TOKEN_REFRESH_INTERVAL", "", "interval between renewals of that token; by default after a quarter to a half of its lifetime"),
    ]},
    VariableGroup { title: "Files and directories", variables: &[
        variable("TORTIE_STATE_DIR", "/var/lib/tortie", "journal of attached containers (`--state-dir`)"),
        variable("TORTIE_RUN_DIR", "/run/tortie", "sockets (`--run-dir`)"),
        variable("TORTIE_CALICO_DIR", "/var/lib/calico", "files `nodename` and `mtu`, which other software reads (`--calico-dir`)"),
        variable("TORTIE_FELIX_CONFIG", "/etc/calico/felix.cfg", "file with [settings](../settings.md) (`--felix-config`)"),
        variable("TORTIE_RECORD", "", "file to which the node's events are recorded, for `tortie replay` (`--record`)"),
        variable("TORTIE_RECORD_LIMIT", "268435456", "largest size of that file in bytes (`--record-limit`)"),
        variable("RUST_LOG", "", "filter for the log on standard error, instead of `logSeverityScreen`"),
    ]},
];
