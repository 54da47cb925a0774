//! Status conditions in the format of Kubernetes.

api_types! {
    /// A status condition. As in Calico, fields without `skip_serializing_if` are always written.
    pub struct Condition {
        pub r#type: String = always,
        /// `True`, `False` or `Unknown`.
        pub status: String = always,
        pub observed_generation: i64,
        /// RFC 3339.
        pub last_transition_time: Option<String> = always,
        pub reason: String = always,
        pub message: String = always,
    }
}
