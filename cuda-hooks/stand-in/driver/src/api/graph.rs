//! Graphs and the capture of streams.

use std::cell::RefCell;
use std::sync::Arc;

use super::{copy, function};
use crate::callback::HostFunction;
use crate::capture::{self, Mode};
use crate::code::{Answer, Code};
use crate::command::Command;
use crate::context::{self, Context, EVENTS};
use crate::graph::{EXECUTABLES, Executable, GRAPHS, Graph, NODES, Node};
use crate::graph_memory::{self, GraphMemory};
use crate::handles::Handles;
use crate::launch::Shape;
use crate::layout::{Copy3D, FillNode, HostNode, Instantiate, KernelNode, KernelNode2, Location, MemoryNode};
use crate::memory::copy::Fill;
use crate::pointer::{In, Out};
use crate::submit;

/// Nothing of a context may be captured when all of it is waited for.
pub fn must_not_capture(context: &Context) -> Answer {
    capture::forbid_all(context)
}

pub fn begin_capture(stream: usize, mode: u32) -> Answer {
    let (context, stream) = context::stream(stream)?;
    capture::begin(&context, &stream, Mode::of(mode)?, None)
}

pub fn begin_capture_v1(stream: usize) -> Answer {
    begin_capture(stream, 0)
}

/// Edges have no data here.
pub fn begin_capture_to(stream: usize, graph: usize, after: In<usize>, count: usize, mode: u32) -> Answer {
    let (context, stream) = context::stream(stream)?;
    let graph = GRAPHS.get(graph)?;
    capture::begin(&context, &stream, Mode::of(mode)?, Some((graph, nodes(after, count)?)))
}

pub fn end_capture(stream: usize, graph: Out<usize>) -> Answer {
    let (_, stream) = context::stream(stream)?;
    let captured = capture::end(&stream);
    if captured.is_err() {
        graph.offer(0);
    }
    graph.put(GRAPHS.add(&captured?))
}

pub fn is_capturing(stream: usize, status: Out<u32>) -> Answer {
    let (_, stream) = context::stream(stream)?;
    status.put(capture::status(&stream).status)
}

thread_local! {
    /// The list that `cuStreamGetCaptureInfo` has given last: "valid until the next API call which operates on the
    /// stream".
    static LISTED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Where the answers of `cuStreamGetCaptureInfo` go.
#[derive(Clone, Copy)]
pub struct Information {
    /// None, active, invalidated.
    pub status: Out<u32>,
    /// Of the capture.
    pub id: Out<u64>,
    /// Where it goes.
    pub graph: Out<usize>,
    /// What the next node comes behind.
    pub last: Out<In<usize>>,
    /// How many.
    pub count: Out<usize>,
}

pub fn capture_information(stream: usize, to: Information) -> Answer {
    let (_, stream) = context::stream(stream)?;
    let now = capture::status(&stream);
    to.status.put(now.status)?;
    if now.status == 1 {
        to.id.offer(now.id);
        to.graph.offer(now.graph.map_or(0, |graph| GRAPHS.add(&graph)));
        to.count.offer(now.last.len());
        LISTED.with_borrow_mut(|listed| {
            *listed = handles(&now.last);
            to.last.offer(In::kept(listed));
        });
    }
    Ok(())
}

pub fn update_dependencies(stream: usize, after: In<usize>, count: usize, flags: u32) -> Answer {
    let (_, stream) = context::stream(stream)?;
    capture::set_last(&stream, nodes(after, count)?, flags == 1)
}

pub fn exchange_mode(mode: Out<u32>) -> Answer {
    mode.put(capture::exchange_mode(Mode::of(mode.get()?)?) as u32)
}

fn nodes(handles: In<usize>, count: usize) -> Answer<Vec<Arc<Node>>> {
    handles.list(count)?.into_iter().map(|handle| NODES.get(handle)).collect()
}

pub fn create(graph: Out<usize>, flags: u32) -> Answer {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    graph.require()?;
    graph.put(GRAPHS.add(&Arc::new(Graph::default())))
}

pub fn destroy(graph: usize) -> Answer {
    GRAPHS.remove(graph)?.clear();
    Ok(())
}

pub fn clone(copy: Out<usize>, graph: usize) -> Answer {
    copy.require()?;
    copy.put(GRAPHS.add(&without_memory(graph)?.copy()))
}

/// A graph that may be copied: one with nodes that allocate or free may not ("Graph Memory Nodes", CUDA C++ Programming
/// Guide); the result is not verified.
fn without_memory(graph: usize) -> Answer<Arc<Graph>> {
    let graph = GRAPHS.get(graph)?;
    if graph.has_memory() { Err(Code::NOT_SUPPORTED) } else { Ok(graph) }
}

/// Where a new node goes, and behind which.
#[derive(Clone, Copy)]
pub struct Where {
    /// The node's handle.
    pub node: Out<usize>,
    /// The graph's.
    pub graph: usize,
    /// Handles of nodes.
    pub after: In<usize>,
    /// How many.
    pub count: usize,
}

fn add(at: Where, command: Command, child: Option<Arc<Graph>>) -> Answer {
    at.node.require()?;
    let graph = GRAPHS.get(at.graph)?;
    let after = nodes(at.after, at.count)?;
    if after.iter().any(|node| node.graph.as_ptr() != Arc::as_ptr(&graph)) {
        return Err(Code::INVALID_VALUE);
    }
    at.node.put(Handles::of(&graph.add_with(command, after, child)))
}

fn kernel(it: &KernelNode, kernel: usize, context: usize) -> Answer<Command> {
    let context = if context == 0 { context::current()?.handle() } else { context };
    let handle = if it.function == 0 { kernel } else { it.function };
    let shape = Shape { grid: it.grid, block: it.block, shared: it.shared, cooperative: false };
    Ok(Command::Launch(Arc::new(function::kernel(handle, context, shape, it.parameters, it.extra)?)))
}

fn kernel_2(it: In<KernelNode2>) -> Answer<Command> {
    let it = it.get()?;
    kernel(&it.first, it.kernel, it.context)
}

fn fill(it: In<FillNode>) -> Answer<Command> {
    let it = it.get()?;
    let (at, pitch, value, bytes) = (it.to, it.pitch, it.value, it.bytes);
    copy::checked_fill(Fill { at, pitch, value, bytes, width: it.width, height: it.height })
}

fn copied(it: In<Copy3D>) -> Answer<Command> {
    Ok(Command::Copy(copy::of_3d(&it.get()?)?))
}

fn host(it: In<HostNode>) -> Answer<Command> {
    let it = it.get()?;
    Ok(Command::Host(HostFunction::at(it.function, it.data)?))
}

pub fn add_kernel_v1(at: Where, parameters: In<KernelNode>) -> Answer {
    add(at, kernel(&parameters.get()?, 0, 0)?, None)
}

pub fn add_kernel(at: Where, parameters: In<KernelNode2>) -> Answer {
    add(at, kernel_2(parameters)?, None)
}

pub fn add_copy(at: Where, parameters: In<Copy3D>) -> Answer {
    add(at, copied(parameters)?, None)
}

pub fn add_fill(at: Where, parameters: In<FillNode>) -> Answer {
    add(at, fill(parameters)?, None)
}

pub fn add_host(at: Where, parameters: In<HostNode>) -> Answer {
    add(at, host(parameters)?, None)
}

/// The child is copied: what happens to it afterwards is of no effect.
pub fn add_child(at: Where, child: usize) -> Answer {
    let child = without_memory(child)?.copy();
    add(at, Command::Nothing, Some(child))
}

/// The address is known at once.
pub fn add_memory(at: Where, parameters: Out<MemoryNode>) -> Answer {
    let it = parameters.get()?;
    let of = it.pool;
    if of.kind != 1 || of.handle_types != 0 || of.location != (Location { kind: 1, id: 0 }) {
        return Err(Code::INVALID_VALUE);
    }
    let memory = GraphMemory::new(it.bytes)?;
    let pointer = memory.at;
    add(at, Command::TakeMemory(memory), None)?;
    parameters.put(MemoryNode { pointer, ..it })
}

pub fn add_free(at: Where, pointer: u64) -> Answer {
    let memory = graph_memory::of(pointer).ok_or(Code::INVALID_VALUE)?;
    add(at, Command::GiveMemory(memory), None)
}

pub fn add_empty(at: Where) -> Answer {
    add(at, Command::Nothing, None)
}

pub fn add_record(at: Where, event: usize) -> Answer {
    add(at, Command::Record(EVENTS.get(event)?, 0), None)
}

pub fn add_wait(at: Where, event: usize) -> Answer {
    add(at, Command::WaitEvent(EVENTS.get(event)?), None)
}

pub fn set_kernel(node: usize, parameters: In<KernelNode2>) -> Answer {
    NODES.get(node)?.set(kernel_2(parameters)?)
}

pub fn set_copy(node: usize, parameters: In<Copy3D>) -> Answer {
    NODES.get(node)?.set(copied(parameters)?)
}

pub fn set_fill(node: usize, parameters: In<FillNode>) -> Answer {
    NODES.get(node)?.set(fill(parameters)?)
}

pub fn set_host(node: usize, parameters: In<HostNode>) -> Answer {
    NODES.get(node)?.set(host(parameters)?)
}

pub fn get_host(node: usize, parameters: Out<HostNode>) -> Answer {
    match NODES.get(node)?.command() {
        Command::Host(function) => {
            let (function, data) = function.parts();
            parameters.put(HostNode { function, data })
        }
        _ => Err(Code::INVALID_VALUE),
    }
}

pub fn get_fill(node: usize, parameters: Out<FillNode>) -> Answer {
    match NODES.get(node)?.command() {
        Command::Fill(it) => {
            let (to, pitch, value, bytes) = (it.at, it.pitch, it.value, it.bytes);
            parameters.put(FillNode { to, pitch, value, bytes, width: it.width, height: it.height })
        }
        _ => Err(Code::INVALID_VALUE),
    }
}

pub fn kind(node: usize, kind: Out<u32>) -> Answer {
    kind.put(NODES.get(node)?.kind as u32)
}

pub fn child(node: usize, graph: Out<usize>) -> Answer {
    let node = NODES.get(node)?;
    graph.put(GRAPHS.add(node.child.as_ref().ok_or(Code::INVALID_VALUE)?))
}

pub fn destroy_node(node: usize) -> Answer {
    let node = NODES.get(node)?;
    node.graph.upgrade().ok_or(Code::INVALID_HANDLE)?.remove(&node);
    Ok(())
}

/// A list as these calls give it: "if nodes is NULL ... the number is returned"; "further entries are set to NULL".
fn listed(list: &[usize], to: Out<usize>, count: Out<usize>) -> Answer {
    if to.require().is_err() {
        return count.put(list.len());
    }
    let room = count.get()?;
    let mut values: Vec<usize> = list.iter().copied().take(room).collect();
    let given = values.len();
    values.resize(room, 0);
    to.fill(&values)?;
    count.put(given)
}

fn handles(nodes: &[Arc<Node>]) -> Vec<usize> {
    nodes.iter().map(Handles::of).collect()
}

pub fn all_nodes(graph: usize, to: Out<usize>, count: Out<usize>) -> Answer {
    listed(&handles(&GRAPHS.get(graph)?.nodes()), to, count)
}

pub fn root_nodes(graph: usize, to: Out<usize>, count: Out<usize>) -> Answer {
    listed(&handles(&GRAPHS.get(graph)?.roots()), to, count)
}

pub fn edges(graph: usize, from: Out<usize>, to: Out<usize>, count: Out<usize>) -> Answer {
    let edges = GRAPHS.get(graph)?.edges();
    let (sources, targets): (Vec<_>, Vec<_>) = edges.into_iter().unzip();
    if from.require().is_err() || to.require().is_err() {
        return count.put(sources.len());
    }
    let room = count.get()?;
    listed(&handles(&sources), from, count)?;
    count.put(room)?;
    listed(&handles(&targets), to, count)
}

pub fn dependencies(node: usize, to: Out<usize>, count: Out<usize>) -> Answer {
    listed(&handles(&NODES.get(node)?.before()), to, count)
}

pub fn dependents(node: usize, to: Out<usize>, count: Out<usize>) -> Answer {
    let node = NODES.get(node)?;
    let graph = node.graph.upgrade().ok_or(Code::INVALID_HANDLE)?;
    let edges = graph.edges().into_iter().filter(|(from, _)| Arc::ptr_eq(from, &node));
    let behind: Vec<Arc<Node>> = edges.map(|(_, to)| to).collect();
    listed(&handles(&behind), to, count)
}

pub fn connect(graph: usize, from: In<usize>, to: In<usize>, count: usize) -> Answer {
    let (graph, from, to) = (GRAPHS.get(graph)?, nodes(from, count)?, nodes(to, count)?);
    from.iter().zip(&to).try_for_each(|(from, to)| graph.connect(from, to))
}

pub fn disconnect(graph: usize, from: In<usize>, to: In<usize>, count: usize) -> Answer {
    let (graph, from, to) = (GRAPHS.get(graph)?, nodes(from, count)?, nodes(to, count)?);
    from.iter().zip(&to).try_for_each(|(from, to)| graph.disconnect(from, to))
}

pub fn instantiate_v1(executable: Out<usize>, graph: usize, node: Out<usize>) -> Answer {
    node.offer(0);
    instantiate(executable, graph, 0)
}

pub fn instantiate(executable: Out<usize>, graph: usize, flags: u64) -> Answer {
    executable.require()?;
    executable.put(EXECUTABLES.add(&Executable::new(&*GRAPHS.get(graph)?, flags)?))
}

pub fn instantiate_with(executable: Out<usize>, graph: usize, parameters: Out<Instantiate>) -> Answer {
    let mut by = parameters.get()?;
    let done = instantiate(executable, graph, by.flags);
    // CUDA_GRAPH_INSTANTIATE_SUCCESS, CUDA_GRAPH_INSTANTIATE_ERROR
    (by.node, by.result) = (0, u32::from(done.is_err()));
    parameters.put(by)?;
    done
}

pub fn executable_flags(executable: usize, flags: Out<u64>) -> Answer {
    flags.put(EXECUTABLES.get(executable)?.flags)
}

/// In a captured stream it is not allowed (900 on an H200 with driver 580.159.04).
pub fn launch(executable: usize, stream: usize) -> Answer {
    let executable = EXECUTABLES.get(executable)?;
    let target = submit::target(stream)?;
    capture::forbid(&target.stream)?;
    executable.launch(&target.context, &target.stream)
}

pub fn upload(executable: usize, stream: usize) -> Answer {
    EXECUTABLES.get(executable)?;
    submit::target(stream).map(drop)
}

pub fn destroy_executable(executable: usize) -> Answer {
    EXECUTABLES.remove(executable).map(drop)
}

pub fn executable_set_kernel(executable: usize, node: usize, parameters: In<KernelNode2>) -> Answer {
    EXECUTABLES.get(executable)?.set(node, kernel_2(parameters)?)
}

pub fn executable_set_copy(executable: usize, node: usize, parameters: In<Copy3D>) -> Answer {
    EXECUTABLES.get(executable)?.set(node, copied(parameters)?)
}

pub fn executable_set_fill(executable: usize, node: usize, parameters: In<FillNode>) -> Answer {
    EXECUTABLES.get(executable)?.set(node, fill(parameters)?)
}

pub fn executable_set_host(executable: usize, node: usize, parameters: In<HostNode>) -> Answer {
    EXECUTABLES.get(executable)?.set(node, host(parameters)?)
}

pub fn update(executable: usize, graph: usize, result: Out<u32>) -> Answer {
    let done = EXECUTABLES.get(executable)?.update(&*GRAPHS.get(graph)?);
    // CU_GRAPH_EXEC_UPDATE_SUCCESS, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
    result.offer(if done.is_ok() { 0 } else { 2 });
    done
}
