//! The form that all structs of the API share.

/// Defines structs whose fields are optional in JSON: an omitted field is read as its default, and a field with its
/// default is not written. `= always` marks a field that is written even then. Keys are in camel case.
macro_rules! api_types {
    ($($(#[$meta:meta])* pub struct $name:ident { $($fields:tt)* })*) => {
        $(api_types! { @fields [$(#[$meta])*] $name [] $($fields)* })*
    };
    (@fields $head:tt $name:ident [$($done:tt)*]
        $(#[$meta:meta])* pub $field:ident: $type:ty = always, $($rest:tt)*
    ) => {
        api_types! { @fields $head $name [$($done)* $(#[$meta])* pub $field: $type,] $($rest)* }
    };
    (@fields $head:tt $name:ident [$($done:tt)*]
        $(#[$meta:meta])* pub $field:ident: $type:ty, $($rest:tt)*
    ) => {
        api_types! { @fields $head $name [
            $($done)*
            $(#[$meta])*
            #[serde(skip_serializing_if = "crate::scalar::is_default")]
            pub $field: $type,
        ] $($rest)* }
    };
    (@fields [$($head:tt)*] $name:ident [$($fields:tt)*]) => {
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(default, rename_all = "camelCase")]
        $($head)*
        pub struct $name { $($fields)* }
    };
}
