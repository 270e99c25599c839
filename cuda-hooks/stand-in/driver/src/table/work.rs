//! Streams, events, graphs; checkpoints.
//!
//! # Safety
//! See `mod.rs`.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::entry::{Address, Entry, Function, StreamFunction, entry, functions};
use crate::api::graph::{Information, Where};
use crate::api::{checkpoint, event, graph, stream};
use crate::entrance::{self, DefaultStream, Rule};
use crate::layout::{
    Copy3D, FillNode, HostNode, Instantiate, KernelNode, KernelNode2, MemoryNode, MemoryOperation,
};
use crate::pointer::{In, Out};

functions! {
    // streams
    Gated "cuStreamCreate" 2000 cuStreamCreate (stream: Out<usize>, flags: u32) => stream::create(stream, flags);
    Gated "cuStreamCreateWithPriority" 5050 cuStreamCreateWithPriority
        (stream: Out<usize>, flags: u32, priority: i32)
        => stream::create_with_priority(stream, flags, priority);
    Gated "cuStreamDestroy" 4000 cuStreamDestroy_v2 (stream: usize) => stream::destroy(stream);
    Gated "cuStreamQuery" 2000 cuStreamQuery (stream: usize) | 7000 cuStreamQuery_ptsz => stream::query(stream);
    Gated "cuStreamSynchronize" 2000 cuStreamSynchronize
        (stream: usize) | 7000 cuStreamSynchronize_ptsz
        => stream::synchronize(stream);
    Gated "cuStreamWaitEvent" 3020 cuStreamWaitEvent
        (stream: usize, event: usize, flags: u32) | 7000 cuStreamWaitEvent_ptsz
        => stream::wait_event(stream, event, flags);
    Gated "cuStreamGetPriority" 5050 cuStreamGetPriority
        (stream: usize, priority: Out<i32>) | 7000 cuStreamGetPriority_ptsz
        => stream::priority(stream, priority);
    Gated "cuStreamGetFlags" 5050 cuStreamGetFlags
        (stream: usize, flags: Out<u32>) | 7000 cuStreamGetFlags_ptsz
        => stream::flags(stream, flags);
    Gated "cuStreamGetId" 12000 cuStreamGetId
        (stream: usize, id: Out<u64>) | 12000 cuStreamGetId_ptsz
        => stream::id(stream, id);
    Gated "cuStreamGetCtx" 9020 cuStreamGetCtx
        (stream: usize, context: Out<usize>) | 9020 cuStreamGetCtx_ptsz
        => stream::context(stream, context);
    Gated "cuStreamGetCtx" 12050 cuStreamGetCtx_v2
        (stream: usize, context: Out<usize>, green: Out<usize>) | 12050 cuStreamGetCtx_v2_ptsz
        => stream::context_v2(stream, context, green);
    Gated "cuStreamGetDevice" 12080 cuStreamGetDevice
        (stream: usize, device: Out<i32>) | 12080 cuStreamGetDevice_ptsz
        => stream::device(stream, device);
    Gated "cuStreamCopyAttributes" 11000 cuStreamCopyAttributes
        (to: usize, from: usize) | 11000 cuStreamCopyAttributes_ptsz
        => stream::copy_attributes(to, from);
    Gated "cuStreamAddCallback" 5000 cuStreamAddCallback
        (stream: usize, function: StreamFunction, data: usize, flags: u32) | 7000 cuStreamAddCallback_ptsz
        => stream::callback(stream, function, data, flags);
    Gated "cuLaunchHostFunc" 10000 cuLaunchHostFunc
        (stream: usize, function: Function, data: usize) | 10000 cuLaunchHostFunc_ptsz
        => stream::host_function(stream, function, data);
    Gated "cuStreamWriteValue32" 8000 cuStreamWriteValue32
        (stream: usize, at: u64, value: u32, flags: u32) | 8000 cuStreamWriteValue32_ptsz
        => stream::write_32(stream, at, value, flags);
    Gated "cuStreamWriteValue32" 11070 cuStreamWriteValue32_v2
        (stream: usize, at: u64, value: u32, flags: u32) | 11070 cuStreamWriteValue32_v2_ptsz
        => stream::write_32(stream, at, value, flags);
    Gated "cuStreamWriteValue64" 9000 cuStreamWriteValue64
        (stream: usize, at: u64, value: u64, flags: u32) | 9000 cuStreamWriteValue64_ptsz
        => stream::write_64(stream, at, value, flags);
    Gated "cuStreamWriteValue64" 11070 cuStreamWriteValue64_v2
        (stream: usize, at: u64, value: u64, flags: u32) | 11070 cuStreamWriteValue64_v2_ptsz
        => stream::write_64(stream, at, value, flags);
    Gated "cuStreamWaitValue32" 8000 cuStreamWaitValue32
        (stream: usize, at: u64, value: u32, flags: u32) | 8000 cuStreamWaitValue32_ptsz
        => stream::wait_32(stream, at, value, flags);
    Gated "cuStreamWaitValue32" 11070 cuStreamWaitValue32_v2
        (stream: usize, at: u64, value: u32, flags: u32) | 11070 cuStreamWaitValue32_v2_ptsz
        => stream::wait_32(stream, at, value, flags);
    Gated "cuStreamWaitValue64" 9000 cuStreamWaitValue64
        (stream: usize, at: u64, value: u64, flags: u32) | 9000 cuStreamWaitValue64_ptsz
        => stream::wait_64(stream, at, value, flags);
    Gated "cuStreamWaitValue64" 11070 cuStreamWaitValue64_v2
        (stream: usize, at: u64, value: u64, flags: u32) | 11070 cuStreamWaitValue64_v2_ptsz
        => stream::wait_64(stream, at, value, flags);
    Gated "cuStreamBatchMemOp" 8000 cuStreamBatchMemOp
        (stream: usize, count: u32, operations: In<MemoryOperation>, flags: u32) | 8000 cuStreamBatchMemOp_ptsz
        => stream::batch(stream, count, operations, flags);
    Gated "cuStreamBatchMemOp" 11070 cuStreamBatchMemOp_v2
        (stream: usize, count: u32, operations: In<MemoryOperation>, flags: u32) | 11070 cuStreamBatchMemOp_v2_ptsz
        => stream::batch(stream, count, operations, flags);
    // events
    Gated "cuEventCreate" 2000 cuEventCreate (event: Out<usize>, flags: u32) => event::create(event, flags);
    Gated "cuEventRecord" 2000 cuEventRecord
        (event: usize, stream: usize) | 7000 cuEventRecord_ptsz
        => event::record(event, stream);
    Gated "cuEventRecordWithFlags" 11010 cuEventRecordWithFlags
        (event: usize, stream: usize, flags: u32) | 11010 cuEventRecordWithFlags_ptsz
        => event::record_with(event, stream, flags);
    Gated "cuEventQuery" 2000 cuEventQuery (event: usize) => event::query(event);
    Gated "cuEventSynchronize" 2000 cuEventSynchronize (event: usize) => event::synchronize(event);
    // The driver keeps the symbols of 2.0 beside them; Taichi asks for one.
    Gated "cuEventDestroy" 2000 cuEventDestroy (event: usize) => event::destroy(event);
    Gated "cuEventDestroy" 4000 cuEventDestroy_v2 (event: usize) => event::destroy(event);
    Gated "cuEventElapsedTime" 2000 cuEventElapsedTime
        (milliseconds: Out<f32>, start: usize, end: usize)
        => event::elapsed(milliseconds, start, end);
    Gated "cuEventElapsedTime" 12080 cuEventElapsedTime_v2
        (milliseconds: Out<f32>, start: usize, end: usize)
        => event::elapsed(milliseconds, start, end);
    // capture
    Gated "cuStreamBeginCapture" 10000 cuStreamBeginCapture
        (stream: usize) | 10000 cuStreamBeginCapture_ptsz
        => graph::begin_capture_v1(stream);
    Gated "cuStreamBeginCapture" 10010 cuStreamBeginCapture_v2
        (stream: usize, mode: u32) | 10010 cuStreamBeginCapture_v2_ptsz
        => graph::begin_capture(stream, mode);
    Gated "cuStreamBeginCaptureToGraph" 12030 cuStreamBeginCaptureToGraph
        (stream: usize, graph: usize, after: In<usize>, _edges: In<u8>, count: usize, mode: u32)
        | 12030 cuStreamBeginCaptureToGraph_ptsz
        => graph::begin_capture_to(stream, graph, after, count, mode);
    Gated "cuStreamEndCapture" 10000 cuStreamEndCapture
        (stream: usize, graph: Out<usize>) | 10000 cuStreamEndCapture_ptsz
        => graph::end_capture(stream, graph);
    Gated "cuStreamIsCapturing" 10000 cuStreamIsCapturing
        (stream: usize, status: Out<u32>) | 10000 cuStreamIsCapturing_ptsz
        => graph::is_capturing(stream, status);
    Gated "cuStreamGetCaptureInfo" 10010 cuStreamGetCaptureInfo
        (stream: usize, status: Out<u32>, id: Out<u64>) | 10010 cuStreamGetCaptureInfo_ptsz
        => graph::capture_information(
            stream, Information { status, id, graph: Out::NONE, last: Out::NONE, count: Out::NONE });
    Gated "cuStreamGetCaptureInfo" 11030 cuStreamGetCaptureInfo_v2
        (stream: usize, status: Out<u32>, id: Out<u64>, graph: Out<usize>, last: Out<In<usize>>, count: Out<usize>)
        | 11030 cuStreamGetCaptureInfo_v2_ptsz
        => graph::capture_information(stream, Information { status, id, graph, last, count });
    Gated "cuStreamGetCaptureInfo" 12030 cuStreamGetCaptureInfo_v3
        (stream: usize, status: Out<u32>, id: Out<u64>, graph: Out<usize>, last: Out<In<usize>>, edges: Out<usize>,
         count: Out<usize>)
        | 12030 cuStreamGetCaptureInfo_v3_ptsz
        => { edges.offer(0); graph::capture_information(stream, Information { status, id, graph, last, count }) };
    Gated "cuStreamUpdateCaptureDependencies" 11030 cuStreamUpdateCaptureDependencies
        (stream: usize, after: In<usize>, count: usize, flags: u32) | 11030 cuStreamUpdateCaptureDependencies_ptsz
        => graph::update_dependencies(stream, after, count, flags);
    Gated "cuStreamUpdateCaptureDependencies" 12030 cuStreamUpdateCaptureDependencies_v2
        (stream: usize, after: In<usize>, _edges: In<u8>, count: usize, flags: u32)
        | 12030 cuStreamUpdateCaptureDependencies_v2_ptsz
        => graph::update_dependencies(stream, after, count, flags);
    Gated "cuThreadExchangeStreamCaptureMode" 10010 cuThreadExchangeStreamCaptureMode
        (mode: Out<u32>)
        => graph::exchange_mode(mode);
    // graphs
    Gated "cuGraphCreate" 10000 cuGraphCreate (graph: Out<usize>, flags: u32) => graph::create(graph, flags);
    Gated "cuGraphDestroy" 10000 cuGraphDestroy (graph: usize) => graph::destroy(graph);
    Gated "cuGraphClone" 10000 cuGraphClone (copy: Out<usize>, graph: usize) => graph::clone(copy, graph);
    Gated "cuGraphAddKernelNode" 10000 cuGraphAddKernelNode
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize, parameters: In<KernelNode>)
        => graph::add_kernel_v1(Where { node, graph, after, count }, parameters);
    Gated "cuGraphAddKernelNode" 12000 cuGraphAddKernelNode_v2
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize, parameters: In<KernelNode2>)
        => graph::add_kernel(Where { node, graph, after, count }, parameters);
    Gated "cuGraphAddMemcpyNode" 10000 cuGraphAddMemcpyNode
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize, parameters: In<Copy3D>, _context: usize)
        => graph::add_copy(Where { node, graph, after, count }, parameters);
    Gated "cuGraphAddMemsetNode" 10000 cuGraphAddMemsetNode
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize, parameters: In<FillNode>, _context: usize)
        => graph::add_fill(Where { node, graph, after, count }, parameters);
    Gated "cuGraphAddHostNode" 10000 cuGraphAddHostNode
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize, parameters: In<HostNode>)
        => graph::add_host(Where { node, graph, after, count }, parameters);
    Gated "cuGraphAddChildGraphNode" 10000 cuGraphAddChildGraphNode
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize, child: usize)
        => graph::add_child(Where { node, graph, after, count }, child);
    Gated "cuGraphAddEmptyNode" 10000 cuGraphAddEmptyNode
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize)
        => graph::add_empty(Where { node, graph, after, count });
    Gated "cuGraphAddMemAllocNode" 11040 cuGraphAddMemAllocNode
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize, parameters: Out<MemoryNode>)
        => graph::add_memory(Where { node, graph, after, count }, parameters);
    Gated "cuGraphAddMemFreeNode" 11040 cuGraphAddMemFreeNode
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize, pointer: u64)
        => graph::add_free(Where { node, graph, after, count }, pointer);
    Gated "cuGraphAddEventRecordNode" 11010 cuGraphAddEventRecordNode
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize, event: usize)
        => graph::add_record(Where { node, graph, after, count }, event);
    Gated "cuGraphAddEventWaitNode" 11010 cuGraphAddEventWaitNode
        (node: Out<usize>, graph: usize, after: In<usize>, count: usize, event: usize)
        => graph::add_wait(Where { node, graph, after, count }, event);
    Gated "cuGraphKernelNodeSetParams" 12000 cuGraphKernelNodeSetParams_v2
        (node: usize, parameters: In<KernelNode2>)
        => graph::set_kernel(node, parameters);
    Gated "cuGraphMemcpyNodeSetParams" 10000 cuGraphMemcpyNodeSetParams
        (node: usize, parameters: In<Copy3D>)
        => graph::set_copy(node, parameters);
    Gated "cuGraphMemsetNodeSetParams" 10000 cuGraphMemsetNodeSetParams
        (node: usize, parameters: In<FillNode>)
        => graph::set_fill(node, parameters);
    Gated "cuGraphMemsetNodeGetParams" 10000 cuGraphMemsetNodeGetParams
        (node: usize, parameters: Out<FillNode>)
        => graph::get_fill(node, parameters);
    Gated "cuGraphHostNodeSetParams" 10000 cuGraphHostNodeSetParams
        (node: usize, parameters: In<HostNode>)
        => graph::set_host(node, parameters);
    Gated "cuGraphHostNodeGetParams" 10000 cuGraphHostNodeGetParams
        (node: usize, parameters: Out<HostNode>)
        => graph::get_host(node, parameters);
    Gated "cuGraphChildGraphNodeGetGraph" 10000 cuGraphChildGraphNodeGetGraph
        (node: usize, graph: Out<usize>)
        => graph::child(node, graph);
    Gated "cuGraphNodeGetType" 10000 cuGraphNodeGetType (node: usize, kind: Out<u32>) => graph::kind(node, kind);
    Gated "cuGraphGetNodes" 10000 cuGraphGetNodes
        (graph: usize, nodes: Out<usize>, count: Out<usize>)
        => graph::all_nodes(graph, nodes, count);
    Gated "cuGraphGetRootNodes" 10000 cuGraphGetRootNodes
        (graph: usize, nodes: Out<usize>, count: Out<usize>)
        => graph::root_nodes(graph, nodes, count);
    Gated "cuGraphGetEdges" 10000 cuGraphGetEdges
        (graph: usize, from: Out<usize>, to: Out<usize>, count: Out<usize>)
        => graph::edges(graph, from, to, count);
    Gated "cuGraphNodeGetDependencies" 10000 cuGraphNodeGetDependencies
        (node: usize, nodes: Out<usize>, count: Out<usize>)
        => graph::dependencies(node, nodes, count);
    Gated "cuGraphNodeGetDependentNodes" 10000 cuGraphNodeGetDependentNodes
        (node: usize, nodes: Out<usize>, count: Out<usize>)
        => graph::dependents(node, nodes, count);
    Gated "cuGraphAddDependencies" 10000 cuGraphAddDependencies
        (graph: usize, from: In<usize>, to: In<usize>, count: usize)
        => graph::connect(graph, from, to, count);
    Gated "cuGraphAddDependencies" 12030 cuGraphAddDependencies_v2
        (graph: usize, from: In<usize>, to: In<usize>, _edges: In<u8>, count: usize)
        => graph::connect(graph, from, to, count);
    Gated "cuGraphRemoveDependencies" 10000 cuGraphRemoveDependencies
        (graph: usize, from: In<usize>, to: In<usize>, count: usize)
        => graph::disconnect(graph, from, to, count);
    Gated "cuGraphRemoveDependencies" 12030 cuGraphRemoveDependencies_v2
        (graph: usize, from: In<usize>, to: In<usize>, _edges: In<u8>, count: usize)
        => graph::disconnect(graph, from, to, count);
    Gated "cuGraphDestroyNode" 10000 cuGraphDestroyNode (node: usize) => graph::destroy_node(node);
    Gated "cuGraphInstantiate" 10000 cuGraphInstantiate
        (executable: Out<usize>, graph: usize, node: Out<usize>, _log: Out<u8>, _size: usize)
        => graph::instantiate_v1(executable, graph, node);
    Gated "cuGraphInstantiate" 11000 cuGraphInstantiate_v2
        (executable: Out<usize>, graph: usize, node: Out<usize>, _log: Out<u8>, _size: usize)
        => graph::instantiate_v1(executable, graph, node);
    Gated "cuGraphInstantiateWithFlags" 11040 cuGraphInstantiateWithFlags
        (executable: Out<usize>, graph: usize, flags: u64)
        => graph::instantiate(executable, graph, flags);
    Gated "cuGraphInstantiateWithParams" 12000 cuGraphInstantiateWithParams
        (executable: Out<usize>, graph: usize, parameters: Out<Instantiate>) | 12000 cuGraphInstantiateWithParams_ptsz
        => graph::instantiate_with(executable, graph, parameters);
    Gated "cuGraphExecGetFlags" 12000 cuGraphExecGetFlags
        (executable: usize, flags: Out<u64>)
        => graph::executable_flags(executable, flags);
    Gated "cuGraphLaunch" 10000 cuGraphLaunch
        (executable: usize, stream: usize) | 10000 cuGraphLaunch_ptsz
        => graph::launch(executable, stream);
    Gated "cuGraphExecUpdate" 10020 cuGraphExecUpdate
        (executable: usize, graph: usize, node: Out<usize>, result: Out<u32>)
        => { node.offer(0); graph::update(executable, graph, result) };
    Gated "cuGraphExecUpdate" 12000 cuGraphExecUpdate_v2 (executable: usize, graph: usize, result: Out<u32>)
        => graph::update(executable, graph, result);
    Gated "cuGraphUpload" 11010 cuGraphUpload
        (executable: usize, stream: usize) | 11010 cuGraphUpload_ptsz
        => graph::upload(executable, stream);
    Gated "cuGraphExecDestroy" 10000 cuGraphExecDestroy (executable: usize) => graph::destroy_executable(executable);
    Gated "cuGraphExecKernelNodeSetParams" 12000 cuGraphExecKernelNodeSetParams_v2
        (executable: usize, node: usize, parameters: In<KernelNode2>)
        => graph::executable_set_kernel(executable, node, parameters);
    Gated "cuGraphExecMemcpyNodeSetParams" 10020 cuGraphExecMemcpyNodeSetParams
        (executable: usize, node: usize, parameters: In<Copy3D>, _context: usize)
        => graph::executable_set_copy(executable, node, parameters);
    Gated "cuGraphExecMemsetNodeSetParams" 10020 cuGraphExecMemsetNodeSetParams
        (executable: usize, node: usize, parameters: In<FillNode>, _context: usize)
        => graph::executable_set_fill(executable, node, parameters);
    Gated "cuGraphExecHostNodeSetParams" 10020 cuGraphExecHostNodeSetParams
        (executable: usize, node: usize, parameters: In<HostNode>)
        => graph::executable_set_host(executable, node, parameters);
    // checkpoints
    Beside "cuCheckpointProcessGetRestoreThreadId" 12080 cuCheckpointProcessGetRestoreThreadId
        (process: i32, thread: Out<i32>)
        => checkpoint::restore_thread(process, thread);
    Beside "cuCheckpointProcessGetState" 12080 cuCheckpointProcessGetState
        (process: i32, state: Out<u32>)
        => checkpoint::state(process, state);
    Beside "cuCheckpointProcessLock" 12080 cuCheckpointProcessLock
        (process: i32, arguments: In<u8>)
        => checkpoint::lock(process, arguments);
    Beside "cuCheckpointProcessCheckpoint" 12080 cuCheckpointProcessCheckpoint
        (process: i32, arguments: In<u8>)
        => checkpoint::checkpoint(process, arguments);
    Beside "cuCheckpointProcessRestore" 12080 cuCheckpointProcessRestore
        (process: i32, arguments: In<u8>)
        => checkpoint::restore(process, arguments);
    Beside "cuCheckpointProcessUnlock" 12080 cuCheckpointProcessUnlock
        (process: i32, arguments: In<u8>)
        => checkpoint::unlock(process, arguments);
}
