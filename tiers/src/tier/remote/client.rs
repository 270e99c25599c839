//! The client of HTTP, with the settings that `object_store` has for its own.
//!
//! Called by the courier, once for each tier. That of the library follows a server wherever it sends a request, with
//! all headers but the usual ones of credentials (a session token of S3 is none of them), and with the body: memory of
//! programs. Invariant: this one follows to the same server alone (scheme, host and port), a few times.

use object_store::{ClientConfigKey, ClientOptions};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Certificate, Client, NoProxy, Proxy, Url};
use std::time::Duration;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a server may send us on.
const MOST_REDIRECTS: usize = 5;

/// Makes it.
pub(super) fn client(options: &ClientOptions) -> object_store::Result<Client> {
    build(options)
        .map_err(|source| object_store::Error::Generic { store: "HTTP client", source: Box::new(source) })
}

fn build(options: &ClientOptions) -> reqwest::Result<Client> {
    let text = |key| options.get_config_value(&key).filter(|value| !value.is_empty());
    let is_set = |key| text(key).as_deref() == Some("true");
    let agent = text(ClientConfigKey::UserAgent);
    let mut builder = Client::builder()
        .user_agent(agent.unwrap_or_else(|| concat!("holdfast/", env!("CARGO_PKG_VERSION")).to_owned()))
        .default_headers(options.get_default_headers().cloned().unwrap_or_default())
        .connect_timeout(CONNECT)
        .redirect(Policy::custom(
            |attempt| if may_follow(&attempt) { attempt.follow() } else { attempt.stop() },
        ))
        .https_only(!is_set(ClientConfigKey::AllowHttp));
    if let Some(url) = text(ClientConfigKey::ProxyUrl) {
        let excludes = text(ClientConfigKey::ProxyExcludes);
        builder =
            builder.proxy(Proxy::all(url)?.no_proxy(excludes.and_then(|all| NoProxy::from_string(&all))));
        if let Some(certificate) = text(ClientConfigKey::ProxyCaCertificate) {
            builder = builder.tls_certs_merge([Certificate::from_pem(certificate.as_bytes())?]);
        }
    }
    if is_set(ClientConfigKey::NoSystemCertificates) {
        builder = builder.tls_certs_only(std::iter::empty::<Certificate>());
    }
    if is_set(ClientConfigKey::AllowInvalidCertificates) {
        builder = builder.danger_accept_invalid_certs(true);
    }
    builder = if is_set(ClientConfigKey::Http2Only) {
        builder.http2_prior_knowledge()
    } else {
        builder.http1_only()
    };
    builder.build()
}

fn may_follow(attempt: &Attempt<'_>) -> bool {
    let before = attempt.previous();
    before.len() <= MOST_REDIRECTS && before.first().is_some_and(|first| is_same_server(first, attempt.url()))
}

fn is_same_server(one: &Url, other: &Url) -> bool {
    let server =
        |url: &Url| (url.scheme().to_owned(), url.host_str().map(str::to_owned), url.port_or_known_default());
    server(one) == server(other)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_scheme_host_and_port() {
        let same =
            |one: &str, other: &str| is_same_server(&Url::parse(one).unwrap(), &Url::parse(other).unwrap());
        assert!(same("https://a/x", "https://A:443/y?z"));
        for other in ["http://a/x", "https://a:444/x", "https://a.b/x", "https://a@b/x"] {
            assert!(!same("https://a/x", other), "{other}");
        }
    }
}
