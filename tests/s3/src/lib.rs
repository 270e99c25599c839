//! An S3 server in this process, over a folder, that can be cut off.
//!
//! Called by tests/s3.rs. s3s-fs looks whether a key is there before it writes it, in two steps; here conditional
//! requests come one after the other, as at a server that keeps its promise.
#![warn(missing_docs)]

use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};

/// The key that the server accepts.
pub const KEY: (&str, &str) = ("HOLDFASTTEST", "not-a-secret");

/// A running server; ends with the process.
pub struct Server {
    /// `http://127.0.0.1:PORT`
    pub url: String,
    up: watch::Sender<bool>,
}

impl Server {
    /// Serves the folder `root`, in which each folder is a bucket.
    pub fn start(root: &Path) -> Server {
        let mut builder = S3ServiceBuilder::new(FileSystem::new(root).expect("a folder"));
        builder.set_auth(SimpleAuth::from_single(KEY.0, KEY.1));
        let service = builder.build();
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (up, state) = watch::channel(true);
        let conditional = Arc::new(Mutex::new(()));
        std::thread::spawn(move || {
            runtime.block_on(async move {
                loop {
                    let (stream, _) = listener.accept().await.expect("a connection");
                    let (mut state, service, conditional) =
                        (state.clone(), service.clone(), conditional.clone());
                    if !*state.borrow() {
                        continue;
                    }
                    tokio::spawn(async move {
                        let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                            let (service, conditional) = (service.clone(), conditional.clone());
                            async move {
                                let alone = request.headers().contains_key("if-none-match");
                                let _turn = if alone { Some(conditional.lock().await) } else { None };
                                Service::call(&service, request).await
                            }
                        });
                        let served = hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), answer);
                        // Cut off in the middle of whatever it does, or ended by the client.
                        tokio::select! {
                            _ = served => {}
                            _ = state.wait_for(|up| !up) => {}
                        }
                    });
                }
            });
        });
        Server { url, up }
    }

    /// Closes all connections, and each new one, until it is called again.
    pub fn set_up(&self, up: bool) {
        self.up.send_replace(up);
    }
}
