//! The built front end: compressed files that are part of the binary.

use crate::error::ApiError;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// A file of the front end, compressed with gzip.
struct AssetFile {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

/// The page; its links are relative to the root.
const PAGE: AssetFile = AssetFile {
    path: "/",
    content_type: "text/html; charset=utf-8",
    bytes: include_bytes!("../assets/index.html.gz"),
};
const FILES: [AssetFile; 3] = [
    AssetFile {
        path: "/app.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../assets/app.js.gz"),
    },
    AssetFile {
        path: "/app.css",
        content_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../assets/app.css.gz"),
    },
    AssetFile {
        path: "/icon.svg",
        content_type: "image/svg+xml",
        bytes: include_bytes!("../assets/icon.svg.gz"),
    },
];
/// Paths of the views. All are the same page, which reads the path.
const VIEWS: [&str; 9] =
    ["/", "/policies", "/explain", "/what-if", "/routes", "/nodes", "/flows", "/map", "/sign-in"];

/// Serves a file of the front end.
pub async fn serve_asset(uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path();
    match FILES.iter().find(|file| file.path == path) {
        Some(file) => file.respond(&headers),
        None if VIEWS.contains(&path) => PAGE.respond(&headers),
        None => ApiError::NotFound.into_response(),
    }
}

impl AssetFile {
    fn respond(&self, headers: &HeaderMap) -> Response {
        let etag = format!("\"{}\"", HEXLOWER.encode(&Sha256::digest(self.bytes)[..16]));
        // `no-cache` means that the browser asks whether the file has changed.
        let common = [(header::ETAG, etag.clone()), (header::CACHE_CONTROL, "no-cache".to_owned())];
        if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes()) {
            return (StatusCode::NOT_MODIFIED, common).into_response();
        }
        let content = [(header::CONTENT_TYPE, self.content_type), (header::CONTENT_ENCODING, "gzip")];
        (common, content, self.bytes).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of script and style together.
    const MAX_ASSET_BYTES: usize = 120 << 10;

    #[test]
    fn script_and_style_stay_small() {
        let total: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(total <= MAX_ASSET_BYTES, "{total}");
    }

    #[tokio::test]
    async fn views_are_one_page_and_unchanged_files_are_empty() {
        let get =
            async |path: &'static str, headers: HeaderMap| serve_asset(Uri::from_static(path), headers).await;
        for view in VIEWS {
            let response = get(view, HeaderMap::new()).await;
            assert_eq!(response.headers()[header::CONTENT_TYPE], PAGE.content_type, "{view}");
        }
        assert_eq!(get("/nothing", HeaderMap::new()).await.status(), StatusCode::NOT_FOUND);
        let script = get("/app.js", HeaderMap::new()).await;
        let known = HeaderMap::from_iter([(header::IF_NONE_MATCH, script.headers()[header::ETAG].clone())]);
        assert_eq!(get("/app.js", known).await.status(), StatusCode::NOT_MODIFIED);
    }
}
