// SPDX-License-Identifier: MIT OR Apache-2.0

//! All engines together.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::engine::Engine;
use crate::function::Function;
use crate::memory::Mappings;
use crate::topology::{ChannelId, Selection, Topology};

/// The engines of a machine. Their threads end when it is dropped.
pub struct Model {
    topology: Topology,
    engines: Vec<Arc<Engine>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    mappings: Arc<Mappings>,
}

impl Model {
    /// Starts the engines.
    pub fn start(topology: Topology) -> io::Result<Arc<Self>> {
        let mut model = Self {
            topology,
            engines: Vec::new(),
            threads: Mutex::default(),
            mappings: Arc::default(),
        };
        for number in 0..topology.engines {
            let (engine, thread) = Engine::start(number, topology.channels, topology.bandwidth)?;
            model.engines.push(engine);
            model
                .threads
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .push(thread);
        }
        Ok(Arc::new(model))
    }

    /// How many engines and channels there are.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// The engine of a channel.
    pub fn engine(&self, id: ChannelId) -> Option<&Arc<Engine>> {
        self.engines
            .get(usize::from(id.engine))
            .filter(|_| id.channel < self.topology.channels)
    }

    /// Mappings that the functions share.
    pub fn mappings(&self) -> &Arc<Mappings> {
        &self.mappings
    }

    /// Visits every channel of a selection, engine by engine; that none is meant is an error.
    pub fn visit<T>(
        &self,
        selection: Selection,
        mut visit: impl FnMut(ChannelId, &mut Function) -> T,
    ) -> Result<Vec<T>, String> {
        let mut results = Vec::new();
        for (number, engine) in (0..).zip(&self.engines) {
            engine.look(|state| {
                for (channel, function) in (0..).zip(&mut state.functions) {
                    let id = ChannelId {
                        engine: number,
                        channel,
                    };
                    if selection.contains(id) {
                        results.push(visit(id, function));
                    }
                }
            });
        }
        self.none_is_an_error(results, selection)
    }

    /// Sets the bandwidth of the engines of a selection.
    pub fn set_bandwidth(&self, selection: Selection, rate: Option<u64>) -> Result<(), String> {
        let first = |engine| ChannelId { engine, channel: 0 };
        let chosen: Vec<_> = (0..)
            .zip(&self.engines)
            .filter(|(number, _)| selection.contains(first(*number)))
            .map(|(_, engine)| engine.with(|state| state.limiter.set_rate(rate)))
            .collect();
        self.none_is_an_error(chosen, selection).map(|_| ())
    }

    fn none_is_an_error<T>(&self, found: Vec<T>, selection: Selection) -> Result<Vec<T>, String> {
        if found.is_empty() {
            return Err(format!("there is no {selection} in {}", self.topology));
        }
        Ok(found)
    }

    /// Bytes per second of each engine; `None` is unlimited.
    pub fn bandwidths(&self) -> Vec<Option<u64>> {
        self.engines
            .iter()
            .map(|engine| engine.look(|state| state.limiter.rate()))
            .collect()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        for engine in &self.engines {
            engine.stop();
        }
        let threads = self
            .threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
    }
}
