//! The pages of the health server.

use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;

use super::answer::{Answer, json, not_found};
use crate::clock::Moment;
use crate::health::Health;
use crate::metrics::Metrics;

#[derive(Debug)]
pub(super) struct HealthPages {
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<Metrics>,
}

impl HealthPages {
    pub(super) fn answer(&self, request: &Request<Incoming>) -> Answer {
        match request.uri().path() {
            "/healthz" => {
                let (status, body) = self.health.verdict(Moment::now()).healthz();
                self.metrics.count_healthz(status);
                json(status, body)
            }
            "/livez" => {
                let (status, body) = self.health.verdict(Moment::now()).livez();
                self.metrics.count_livez(status);
                json(status, body)
            }
            _ => not_found(),
        }
    }
}
