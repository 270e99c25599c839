//! Graphs: work with edges, made node by node or by capturing streams, instantiated once, launched often. Used by
//! `api::graph` and `capture`.
//!
//! A launch is one piece of work on its stream. The nodes run one after the other, in an order that the edges allow and
//! that a seed chooses: a program that relies on another order fails here, as it may on a device.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::code::{Answer, Code};
use crate::command::Command;
use crate::context::Context;
use crate::graph_memory::{self, GraphMemory};
use crate::handles::Handles;
use crate::random::Random;
use crate::settings::settings;
use crate::stream::{Point, Stream};

/// All graphs that a program has a handle of.
pub static GRAPHS: Handles<Graph> = Handles::new();
/// All nodes.
pub static NODES: Handles<Node> = Handles::new();
/// All instantiated graphs.
pub static EXECUTABLES: Handles<Executable> = Handles::new();

/// `CUgraphNodeType`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Kind {
    Kernel = 0,
    Copy = 1,
    Fill = 2,
    Host = 3,
    Graph = 4,
    Empty = 5,
    WaitEvent = 6,
    Record = 7,
    TakeMemory = 10,
    GiveMemory = 11,
    Values = 12,
}

impl Kind {
    fn of(command: &Command) -> Kind {
        match command {
            Command::Launch(_) => Kind::Kernel,
            Command::Copy(_) | Command::Staged(..) => Kind::Copy,
            Command::Fill(_) => Kind::Fill,
            Command::Host(_) | Command::Callback(_) => Kind::Host,
            Command::Graph(_) => Kind::Graph,
            Command::Nothing | Command::Free(_) => Kind::Empty,
            Command::WaitEvent(_) => Kind::WaitEvent,
            Command::Record(..) => Kind::Record,
            Command::TakeMemory(_) => Kind::TakeMemory,
            Command::GiveMemory(_) => Kind::GiveMemory,
            Command::WriteValue(..) | Command::WaitValue(_) => Kind::Values,
        }
    }
}

/// A node.
pub struct Node {
    /// What it does.
    pub kind: Kind,
    /// Its graph.
    pub graph: Weak<Graph>,
    /// Of a node that is a graph.
    pub child: Option<Arc<Graph>>,
    command: Mutex<Command>,
    after: Mutex<Vec<Arc<Node>>>,
}

/// A graph.
#[derive(Default)]
pub struct Graph {
    nodes: Mutex<Vec<Arc<Node>>>,
    /// The last that was made of it.
    executable: Mutex<Weak<Executable>>,
}

impl Node {
    /// What it does.
    pub fn command(&self) -> Command {
        self.command.lock().clone()
    }

    /// It does something else of its kind from the next instantiation on.
    pub fn set(&self, command: Command) -> Answer {
        if Kind::of(&command) != self.kind {
            return Err(Code::INVALID_VALUE);
        }
        *self.command.lock() = command;
        Ok(())
    }

    /// The nodes that come before it.
    pub fn before(&self) -> Vec<Arc<Node>> {
        self.after.lock().clone()
    }
}

impl Graph {
    /// Adds a node behind others.
    pub fn add(self: &Arc<Graph>, command: Command, after: Vec<Arc<Node>>) -> Arc<Node> {
        self.add_with(command, after, None)
    }

    /// The same, perhaps with a graph in it.
    pub fn add_with(
        self: &Arc<Graph>,
        command: Command,
        after: Vec<Arc<Node>>,
        child: Option<Arc<Graph>>,
    ) -> Arc<Node> {
        let kind = if child.is_some() { Kind::Graph } else { Kind::of(&command) };
        let (command, after) = (Mutex::new(command), Mutex::new(after));
        let node = Arc::new(Node { kind, graph: Arc::downgrade(self), child, command, after });
        NODES.add(&node);
        self.nodes.lock().push(Arc::clone(&node));
        node
    }

    /// All nodes, in the order in which they were added.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.lock().clone()
    }

    /// Those that wait for none.
    pub fn roots(&self) -> Vec<Arc<Node>> {
        self.nodes().into_iter().filter(|node| node.after.lock().is_empty()).collect()
    }

    /// All edges.
    pub fn edges(&self) -> Vec<(Arc<Node>, Arc<Node>)> {
        let nodes = self.nodes();
        let edges = nodes.iter().flat_map(|to| to.before().into_iter().map(|from| (from, Arc::clone(to))));
        edges.collect()
    }

    fn has(&self, node: &Arc<Node>) -> bool {
        self.nodes.lock().iter().any(|it| Arc::ptr_eq(it, node))
    }

    /// Adds an edge; a circle is found at the instantiation.
    pub fn connect(&self, from: &Arc<Node>, to: &Arc<Node>) -> Answer {
        if !self.has(from) || !self.has(to) || Arc::ptr_eq(from, to) {
            return Err(Code::INVALID_VALUE);
        }
        let mut after = to.after.lock();
        if after.iter().any(|it| Arc::ptr_eq(it, from)) {
            return Err(Code::INVALID_VALUE);
        }
        after.push(Arc::clone(from));
        Ok(())
    }

    /// Takes an edge away.
    pub fn disconnect(&self, from: &Arc<Node>, to: &Arc<Node>) -> Answer {
        let mut after = to.after.lock();
        let at = after.iter().position(|it| Arc::ptr_eq(it, from)).ok_or(Code::INVALID_VALUE)?;
        after.remove(at);
        Ok(())
    }

    /// Takes a node away, with its edges.
    pub fn remove(&self, node: &Arc<Node>) {
        let mut nodes = self.nodes.lock();
        nodes.retain(|it| !Arc::ptr_eq(it, node));
        nodes.iter().for_each(|other| other.after.lock().retain(|it| !Arc::ptr_eq(it, node)));
        node.after.lock().clear();
        let _ = NODES.remove(Handles::of(node));
    }

    /// Whether a node of it allocates or frees.
    pub fn has_memory(&self) -> bool {
        self.nodes.lock().iter().any(|node| matches!(node.kind, Kind::TakeMemory | Kind::GiveMemory))
    }

    /// Takes all nodes away.
    pub fn clear(&self) {
        for node in std::mem::take(&mut *self.nodes.lock()) {
            node.after.lock().clear();
            let _ = NODES.remove(Handles::of(&node));
        }
    }

    /// The same graph again, with nodes of its own.
    pub fn copy(&self) -> Arc<Graph> {
        let graph = Arc::new(Graph::default());
        let mut twins: HashMap<usize, Arc<Node>> = HashMap::new();
        let nodes = self.nodes();
        for node in &nodes {
            let child = node.child.as_ref().map(|child| child.copy());
            twins.insert(Handles::of(node), graph.add_with(node.command(), Vec::new(), child));
        }
        for node in &nodes {
            let before = node.before().iter().filter_map(|it| twins.get(&Handles::of(it)).cloned()).collect();
            if let Some(twin) = twins.get(&Handles::of(node)) {
                *twin.after.lock() = before;
            }
        }
        graph
    }

    /// Its commands in an order that the edges allow.
    fn in_order(&self, random: &mut Random) -> Answer<Vec<(usize, Command)>> {
        let mut waiting = self.nodes();
        let mut done: Vec<Arc<Node>> = Vec::new();
        let mut commands = Vec::new();
        while !waiting.is_empty() {
            let is_done = |node: &Arc<Node>| done.iter().any(|it| Arc::ptr_eq(it, node));
            let ready: Vec<usize> =
                (0..waiting.len()).filter(|&n| waiting[n].before().iter().all(is_done)).collect();
            // a circle
            if ready.is_empty() {
                return Err(Code::INVALID_VALUE);
            }
            let node = waiting.remove(ready[(random.next() % ready.len() as u64) as usize]);
            let command = match &node.child {
                Some(child) => {
                    let inner = child.in_order(random)?.into_iter().map(|(_, command)| command);
                    Command::Graph(Arc::new(inner.collect()))
                }
                None => node.command(),
            };
            commands.push((Handles::of(&node), command));
            done.push(node);
        }
        Ok(commands)
    }
}

/// An instantiated graph: nothing that happens to the graph afterwards changes it.
pub struct Executable {
    commands: Mutex<Vec<(usize, Command)>>,
    last: Mutex<Option<Point>>,
    /// As it was made.
    pub flags: u64,
}

impl Executable {
    /// Of a graph.
    pub fn new(graph: &Graph, flags: u64) -> Answer<Arc<Executable>> {
        let mut random = Random(settings().seed);
        let commands = graph.in_order(&mut random)?;
        let mut last = graph.executable.lock();
        // "only one instantiation of the graph may exist at any point in time"; the result is not verified
        if graph.has_memory() && last.strong_count() > 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let made = Arc::new(Executable { commands: Mutex::new(commands), last: Mutex::default(), flags });
        *last = Arc::downgrade(&made);
        Ok(made)
    }

    /// What is still allocated by the launch before is freed, if that was asked for (AUTO_FREE_ON_LAUNCH); else "the
    /// launch will fail" with CUDA_ERROR_INVALID_VALUE (cuGraphLaunch).
    fn left(&self) -> Answer<Vec<Command>> {
        let commands = self.commands.lock();
        let takes = commands.iter().filter_map(|(_, command)| match command {
            Command::TakeMemory(memory) => graph_memory::allocated(memory.at),
            _ => None,
        });
        let left: Vec<Command> = takes.map(Command::GiveMemory).collect();
        if left.is_empty() || self.flags & 1 != 0 { Ok(left) } else { Err(Code::INVALID_VALUE) }
    }

    /// What a node does in it from the next launch on.
    pub fn set(&self, node: usize, command: Command) -> Answer {
        let mut commands = self.commands.lock();
        let there = commands.iter_mut().find(|it| it.0 == node).ok_or(Code::INVALID_VALUE)?;
        if Kind::of(&there.1) != Kind::of(&command) {
            return Err(Code::INVALID_VALUE);
        }
        there.1 = command;
        Ok(())
    }

    /// Takes over what another graph's nodes do, if it has the same nodes in the same order.
    pub fn update(&self, graph: &Graph) -> Answer {
        let new = Executable::new(graph, self.flags)?;
        let (mut commands, new) = (self.commands.lock(), new.commands.lock());
        let same = commands.len() == new.len()
            && commands.iter().zip(new.iter()).all(|(a, b)| Kind::of(&a.1) == Kind::of(&b.1));
        if !same {
            // CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
            return Err(Code(910));
        }
        commands.clone_from(&new);
        Ok(())
    }

    /// Queues it. "Only one instance of hGraphExec may be executing at a time": the next one waits.
    pub fn launch(&self, context: &Context, stream: &Arc<Stream>) -> Answer {
        let mut last = self.last.lock();
        let mut after: Vec<Point> = last.iter().cloned().collect();
        let (mut commands, mut recorded) = (self.left()?, Vec::new());
        for (_, command) in self.commands.lock().iter() {
            match command {
                Command::Record(event, _) => {
                    let number = event.prepare();
                    recorded.push((Arc::clone(event), number));
                    commands.push(Command::Record(Arc::clone(event), number));
                }
                Command::WaitEvent(event) => after.extend(event.point()),
                other => commands.push(other.clone()),
            }
        }
        let memory: Vec<(Arc<GraphMemory>, bool)> = commands
            .iter()
            .filter_map(|command| match command {
                Command::TakeMemory(memory) => Some((Arc::clone(memory), true)),
                Command::GiveMemory(memory) => Some((Arc::clone(memory), false)),
                _ => None,
            })
            .collect();
        let point = context.submit(stream, after, Command::Graph(Arc::new(commands)))?;
        memory.iter().for_each(|(memory, there)| memory.will_be(*there));
        for (event, number) in recorded {
            event.set(number, point.clone());
        }
        *last = Some(point);
        Ok(())
    }
}
