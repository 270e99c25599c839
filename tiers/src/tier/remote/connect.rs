//! From an address and what the environment says to a store.
//!
//! Called when a tier is opened. Credentials come from the usual places of each cloud and go to `object_store` alone.
//! Invariant: no message has a value of the environment or of a file in it.

use super::aws_files;
use super::courier::Couriers;
use super::patience::Patience;
use crate::tier::TierError;
use crate::tier::address::{Address, Cloud};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, HeaderMap, HeaderValue, ObjectStore, RetryConfig,
};
use std::sync::Arc;
use std::time::Duration;

/// How long a connection may take to be made.
const CONNECT: &str = "10 seconds";
/// The library's own limit for a whole request is of no use: the courier has one that depends on the length.
const NO_LIMIT: &str = "30 days";

/// What the environment says; a variable that is set to nothing is not set.
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// From HOLDFAST_REMOTE_TIMEOUT, seconds.
pub(super) fn patience(name: &str) -> Result<Patience, TierError> {
    let seconds = match env("HOLDFAST_REMOTE_TIMEOUT") {
        None => 30,
        Some(text) => text.parse().ok().filter(|seconds| (1..=3600).contains(seconds)).ok_or_else(|| {
            settings(name, "HOLDFAST_REMOTE_TIMEOUT has to be a number of seconds, 1 to 3600".to_owned())
        })?,
    };
    Ok(Patience { answer: Duration::from_secs(seconds) })
}

/// The store that an address means.
pub(super) fn store(
    address: &Address,
    name: &str,
    patience: Patience,
) -> Result<Arc<dyn ObjectStore>, TierError> {
    // Fails only where a provider is there already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match address {
        Address::Bucket { cloud: Cloud::S3, bucket, .. } => s3(bucket, name, patience),
        Address::Bucket { cloud: Cloud::Google, bucket, .. } => {
            let mut builder = GoogleCloudStorageBuilder::from_env();
            for (key, value) in client_settings(false) {
                builder = builder.with_config(GoogleConfigKey::Client(key), value);
            }
            let builder = builder
                .with_bucket_name(bucket)
                .with_retry(retries())
                .with_http_connector(couriers(patience));
            shared(builder.build(), name)
        }
        Address::Bucket { cloud: Cloud::Azure, bucket, .. } => {
            let mut builder = MicrosoftAzureBuilder::from_env();
            for (key, value) in client_settings(false) {
                builder = builder.with_config(AzureConfigKey::Client(key), value);
            }
            let builder = builder
                .with_container_name(bucket)
                .with_retry(retries())
                .with_http_connector(couriers(patience));
            shared(builder.build(), name)
        }
        Address::Http { secure, host, .. } => http(*secure, host, name, patience),
        Address::Folder(_) => Err(settings(name, "this is no address of a server".to_owned())),
    }
}

fn s3(bucket: &str, name: &str, patience: Patience) -> Result<Arc<dyn ObjectStore>, TierError> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    let elsewhere = [
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_SKIP_SIGNATURE",
    ];
    if !elsewhere.iter().any(|variable| env(variable).is_some()) {
        let profile = aws_files::profile(env).map_err(|why| settings(name, why))?.unwrap_or_default();
        if let (Some(key_id), Some(secret)) = (profile.key_id, profile.secret) {
            builder = builder.with_access_key_id(key_id).with_secret_access_key(secret);
        }
        if let Some(token) = profile.token {
            builder = builder.with_token(token);
        }
        let is_set = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_some();
        if let Some(region) = profile.region
            && !is_set(&builder, AmazonS3ConfigKey::Region)
        {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = profile.endpoint
            && !is_set(&builder, AmazonS3ConfigKey::Endpoint)
        {
            builder = builder.with_endpoint(endpoint);
        }
    }
    with_client(builder, name, patience)
}

/// The store that a builder makes which knows bucket, endpoint and credentials.
pub(super) fn with_client(
    mut builder: AmazonS3Builder,
    name: &str,
    patience: Patience,
) -> Result<Arc<dyn ObjectStore>, TierError> {
    let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let plain = endpoint
        .iter()
        .find_map(|key| builder.get_config_value(key))
        .is_some_and(|url| url.starts_with("http:"));
    let allowed = builder.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    if plain && allowed.as_deref() != Some("true") {
        return Err(settings(
            name,
            "the endpoint is http://, which anybody on the way can read: use https://, or set AWS_ALLOW_HTTP=true"
                .to_owned(),
        ));
    }
    for (key, value) in client_settings(plain) {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    // What TLS protects needs no hash of every part, which costs as much processor time as the rest of the upload.
    let unsigned =
        !plain || builder.get_config_value(&AmazonS3ConfigKey::UnsignedPayload).as_deref() == Some("true");
    let couriers = Couriers { patience, conditional_end: true };
    let builder = builder
        .with_unsigned_payload(unsigned)
        .with_disable_bulk_delete(true)
        .with_retry(retries())
        .with_http_connector(couriers);
    shared(builder.build(), name)
}

/// The path of the address is the prefix of the tier: the library takes what a server lists for paths from the host on.
fn http(secure: bool, host: &str, name: &str, patience: Patience) -> Result<Arc<dyn ObjectStore>, TierError> {
    let mut options = ClientOptions::new().with_allow_http(!secure);
    for (key, value) in client_settings(!secure) {
        options = options.with_config(key, value);
    }
    if let Some(authorization) = env("HOLDFAST_HTTP_AUTHORIZATION") {
        if !secure {
            let why = "HOLDFAST_HTTP_AUTHORIZATION is for https:// only: without TLS others could read it";
            return Err(settings(name, why.to_owned()));
        }
        let mut value = HeaderValue::from_str(&authorization)
            .map_err(|_| settings(name, "HOLDFAST_HTTP_AUTHORIZATION is no value of a header".to_owned()))?;
        value.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.insert("authorization", value);
        options = options.with_default_headers(headers);
    }
    let builder = HttpBuilder::new()
        .with_url(format!("http{}://{host}", if secure { "s" } else { "" }))
        .with_client_options(options)
        .with_retry(retries())
        .with_http_connector(couriers(patience));
    shared(builder.build(), name)
}

/// `plain`: no TLS, so that a host without certificates of authorities will do.
fn client_settings(plain: bool) -> Vec<(ClientConfigKey, String)> {
    let mut settings = vec![
        (ClientConfigKey::ConnectTimeout, CONNECT.to_owned()),
        (ClientConfigKey::Timeout, NO_LIMIT.to_owned()),
    ];
    if plain {
        settings.push((ClientConfigKey::NoSystemCertificates, "true".to_owned()));
    }
    settings
}

fn couriers(patience: Patience) -> Couriers {
    Couriers { patience, conditional_end: false }
}

/// A few, for what passes by itself at once; who waits longer is the caller, which knows what is waiting.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(3),
            base: 3.0,
        },
        max_retries: 3,
        retry_timeout: Duration::from_secs(180),
    }
}

fn settings(name: &str, why: String) -> TierError {
    TierError::Settings { object: name.to_owned(), why }
}

fn shared<S: ObjectStore>(
    built: object_store::Result<S>,
    name: &str,
) -> Result<Arc<dyn ObjectStore>, TierError> {
    match built {
        Ok(store) => Ok(Arc::new(store)),
        // The text of the library may have a setting in it, and a setting may be a key.
        Err(object_store::Error::UnknownConfigurationKey { key, .. }) => {
            Err(settings(name, format!("{key} is no setting of this store")))
        }
        Err(error) if chain(&error).any(|cause| cause.contains("CA certificates")) => {
            let why = "this host has no certificates of authorities to check a server by; install ca-certificates";
            Err(settings(name, why.to_owned()))
        }
        Err(_) => Err(settings(
            name,
            "the settings in the environment are not complete or not right; docs/remote.md has what each kind of \
             store needs"
                .to_owned(),
        )),
    }
}

/// The texts of an error and of what has caused it.
fn chain(error: &object_store::Error) -> impl Iterator<Item = String> + '_ {
    std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source())
        .map(ToString::to_string)
}
