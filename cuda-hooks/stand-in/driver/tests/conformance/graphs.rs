//! Graphs, made by hand and by capture.

use crate::driver::{NULL, allocate, event, float, get, kernel, launch, module, put, start, stream};
use crate::{BASIC, cu, isolated, ok};

fn instantiate(graph: usize) -> usize {
    let mut executable = 0usize;
    ok!("cuGraphInstantiateWithFlags" 11040, &mut executable, graph, 0u64);
    executable
}

#[repr(C)]
struct Fill {
    to: u64,
    pitch: usize,
    value: u32,
    bytes: u32,
    width: usize,
    height: usize,
}

#[repr(C)]
struct Kernel {
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u64,
    parameters: *const u64,
    extra: u64,
    kernel: usize,
    context: usize,
}

isolated! {
    nodes_run_in_the_order_of_their_edges {
        start();
        let (x, y) = (put(&[1f32; 64]), allocate(256));
        let mut graph = 0usize;
        ok!("cuGraphCreate" 10000, &mut graph, 0u32);
        let (mut fill, mut compute) = (0usize, 0usize);
        let zeros = Fill { to: y, pitch: 0, value: 0, bytes: 4, width: 64, height: 1 };
        ok!("cuGraphAddMemsetNode" 10000, &mut fill, graph, NULL, 0usize, &zeros, 0usize);
        let parameters = [64, float(2.0), x, y];
        let pointers: Vec<u64> = parameters.iter().map(|p| std::ptr::from_ref(p) as u64).collect();
        let saxpy = Kernel {
            function: kernel(module(BASIC), "saxpy"),
            grid: [1; 3],
            block: [64, 1, 1],
            shared: 0,
            parameters: pointers.as_ptr(),
            extra: 0,
            kernel: 0,
            context: 0,
        };
        ok!("cuGraphAddKernelNode" 12000, &mut compute, graph, &[fill], 1usize, &saxpy);
        let mut count = 0usize;
        ok!("cuGraphGetNodes" 10000, graph, NULL, &mut count);
        assert_eq!(count, 2);
        let mut roots = [7usize; 3];
        let mut count = 3usize;
        ok!("cuGraphGetRootNodes" 10000, graph, &mut roots, &mut count);
        assert_eq!((roots, count), ([fill, 0, 0], 1));
        let executable = instantiate(graph);
        // what happens to the graph afterwards is of no effect
        ok!("cuGraphDestroy" 10000, graph);
        let on = stream(0);
        for _ in 0..3 {
            ok!("cuGraphLaunch" 10000, executable, on);
        }
        assert_eq!(get::<f32>(y, 64), [2.0; 64]);
        ok!("cuGraphExecDestroy" 10000, executable);
    }
}

isolated! {
    a_captured_stream_runs_when_its_graph_is_launched {
        start();
        let (x, y) = (put(&[3f32; 64]), put(&[0f32; 64]));
        ok!("cuCtxSynchronize" 2000);
        let saxpy = kernel(module(BASIC), "saxpy");
        let (on, other) = (stream(1), stream(1));
        let (fork, join) = (event(), event());
        ok!("cuStreamBeginCapture" 12000, on, 0u32);
        assert_eq!(launch(saxpy, 1, 64, on, &[64, float(1.0), x, y]), 0);
        ok!("cuEventRecord" 2000, fork, on);
        ok!("cuStreamWaitEvent" 3020, other, fork, 0u32);
        assert_eq!(launch(saxpy, 1, 64, other, &[64, float(1.0), x, y]), 0);
        ok!("cuEventRecord" 2000, join, other);
        ok!("cuStreamWaitEvent" 3020, on, join, 0u32);
        let mut status = 9u32;
        ok!("cuStreamIsCapturing" 10000, on, &mut status);
        assert_eq!(status, 1);
        let mut graph = 0usize;
        ok!("cuStreamEndCapture" 10000, on, &mut graph);
        assert_eq!(get::<f32>(y, 1), [0.0], "nothing has run yet");
        let executable = instantiate(graph);
        ok!("cuGraphLaunch" 10000, executable, on);
        ok!("cuGraphLaunch" 10000, executable, on);
        ok!("cuStreamSynchronize" 2000, on);
        assert_eq!(get::<f32>(y, 64), [12.0; 64]);
    }
}

isolated! {
    a_graph_is_not_launched_into_a_capture {
        start();
        let (x, y) = (put(&[1f32; 64]), put(&[0f32; 64]));
        ok!("cuCtxSynchronize" 2000);
        let saxpy = kernel(module(BASIC), "saxpy");
        let on = stream(1);
        let mut graph = 0usize;
        ok!("cuStreamBeginCapture" 12000, on, 0u32);
        assert_eq!(launch(saxpy, 1, 64, on, &[64, float(1.0), x, y]), 0);
        ok!("cuStreamEndCapture" 10000, on, &mut graph);
        let inner = instantiate(graph);
        ok!("cuStreamBeginCapture" 12000, on, 0u32);
        assert_eq!(cu!("cuGraphLaunch" 10000, inner, on), 900);
        // whether that ends the capture is the driver's affair
        let _ = cu!("cuStreamEndCapture" 10000, on, &mut graph);
        ok!("cuGraphLaunch" 10000, inner, on);
        ok!("cuStreamSynchronize" 2000, on);
        assert_eq!(get::<f32>(y, 64), [1.0; 64]);
    }
}

isolated! {
    waiting_invalidates_a_capture {
        start();
        let on = stream(1);
        ok!("cuStreamBeginCapture" 12000, on, 0u32);
        assert_eq!(cu!("cuStreamSynchronize" 2000, on), 900);
        let mut graph = 1usize;
        assert_eq!(cu!("cuStreamEndCapture" 10000, on, &mut graph), 901);
        assert_eq!(graph, 0);
        ok!("cuStreamSynchronize" 2000, on);
        assert_ne!(cu!("cuStreamEndCapture" 10000, on, &mut graph), 0);
        assert_eq!(cu!("cuStreamBeginCapture" 12000, 0usize, 0u32), 900);
    }
}

isolated! {
    a_launch_that_is_refused_invalidates_a_capture {
        start();
        let (x, y) = (put(&[1f32; 64]), put(&[0f32; 64]));
        ok!("cuCtxSynchronize" 2000);
        let (saxpy, on) = (kernel(module(BASIC), "saxpy"), stream(1));
        ok!("cuStreamBeginCapture" 12000, on, 1u32);
        assert_eq!(launch(saxpy, 1, 4096, on, &[64, float(1.0), x, y]), 1);
        let (mut status, mut graph) = (9u32, 1usize);
        ok!("cuStreamIsCapturing" 10000, on, &mut status);
        assert_eq!(status, 2);
        assert_eq!(launch(saxpy, 1, 64, on, &[64, float(1.0), x, y]), 901);
        assert_eq!(cu!("cuStreamEndCapture" 10000, on, &mut graph), 901);
        ok!("cuStreamIsCapturing" 10000, on, &mut status);
        assert_eq!(status, 0);
    }
}

isolated! {
    a_stream_that_is_not_joined_again_fails_the_capture {
        start();
        let (at, on, other, fork) = (allocate(4), stream(1), stream(1), event());
        ok!("cuStreamBeginCapture" 12000, on, 2u32);
        ok!("cuEventRecord" 2000, fork, on);
        ok!("cuStreamWaitEvent" 3020, other, fork, 0u32);
        ok!("cuMemsetD32Async" 3020, at, 1u32, 1usize, other);
        let mut graph = 0usize;
        assert_eq!(cu!("cuStreamEndCapture" 10000, on, &mut graph), 904);
        for stream in [on, other] {
            let mut status = 9u32;
            ok!("cuStreamIsCapturing" 10000, stream, &mut status);
            assert_eq!(status, 0);
        }
    }
}

/// Of a pool on the device: kind, no handles, location; then access, count, bytes, and the address that is returned.
#[repr(C)]
#[derive(Clone, Copy)]
struct Memory {
    pool: [u32; 22],
    access: u64,
    count: u64,
    bytes: u64,
    pointer: u64,
}

impl Memory {
    fn of(bytes: u64) -> Memory {
        let mut pool = [0; 22];
        (pool[0], pool[2]) = (1, 1);
        Memory { pool, access: 0, count: 0, bytes, pointer: 0 }
    }
}

/// A graph that allocates, fills what it has, and copies it out: graph, address, and where the copy is.
fn with_memory(frees: bool) -> (usize, u64, u64) {
    let (mut graph, mut nodes, out) = (0usize, [0usize; 4], allocate(256));
    ok!("cuGraphCreate" 10000, &mut graph, 0u32);
    let mut memory = Memory::of(256);
    ok!("cuGraphAddMemAllocNode" 11040, &mut nodes[0], graph, NULL, 0usize, &mut memory);
    assert_ne!(memory.pointer, 0);
    let fill = Fill { to: memory.pointer, pitch: 0, value: 7, bytes: 4, width: 64, height: 1 };
    // what is there only while the graph runs has no context of its own: 1 without one (driver 580.159.04)
    let mut context = 0usize;
    ok!("cuCtxGetCurrent" 4000, &mut context);
    ok!("cuGraphAddMemsetNode" 10000, &mut nodes[1], graph, &nodes[0], 1usize, &fill, context);
    let copy = kernel(module(BASIC), "saxpy");
    let parameters = [64, float(1.0), memory.pointer, out];
    let pointers: Vec<u64> = parameters.iter().map(|p| std::ptr::from_ref(p) as u64).collect();
    let saxpy = Kernel {
        function: copy,
        grid: [1; 3],
        block: [64, 1, 1],
        shared: 0,
        parameters: pointers.as_ptr(),
        extra: 0,
        kernel: 0,
        context: 0,
    };
    ok!("cuGraphAddKernelNode" 12000, &mut nodes[2], graph, &nodes[1], 1usize, &saxpy);
    if frees {
        ok!("cuGraphAddMemFreeNode" 11040, &mut nodes[3], graph, &nodes[2], 1usize, memory.pointer);
    }
    (graph, memory.pointer, out)
}

isolated! {
    memory_of_a_graph_is_there_from_node_to_node {
        start();
        let (graph, pointer, _) = with_memory(true);
        let (executable, on) = (instantiate(graph), stream(1));
        for _ in 0..2 {
            ok!("cuGraphLaunch" 10000, executable, on);
            ok!("cuStreamSynchronize" 2000, on);
        }
        let mut word = [0u32];
        assert_ne!(cu!("cuMemcpyDtoH" 3020, &mut word, pointer, 4usize), 0, "it is freed");
        // one instantiation at a time, and no copies
        let (mut other, mut copy) = (0usize, 0usize);
        assert_ne!(cu!("cuGraphInstantiateWithFlags" 11040, &mut other, graph, 0u64), 0);
        assert_ne!(cu!("cuGraphClone" 10000, &mut copy, graph), 0);
        ok!("cuGraphExecDestroy" 10000, executable);
        ok!("cuGraphExecDestroy" 10000, instantiate(graph));
    }
}

isolated! {
    memory_that_a_graph_does_not_free_lasts_and_is_the_programs {
        start();
        let (graph, pointer, _) = with_memory(false);
        let (executable, on) = (instantiate(graph), stream(1));
        ok!("cuGraphLaunch" 10000, executable, on);
        ok!("cuStreamSynchronize" 2000, on);
        assert_eq!(cu!("cuGraphLaunch" 10000, executable, on), 1, "it is allocated");
        let own = std::process::id() as i32;
        ok!("cuCheckpointProcessLock" 12080, own, NULL);
        ok!("cuCheckpointProcessCheckpoint" 12080, own, NULL);
        ok!("cuCheckpointProcessRestore" 12080, own, NULL);
        ok!("cuCheckpointProcessUnlock" 12080, own, NULL);
        assert_eq!(get::<u32>(pointer, 64), [7; 64]);
        ok!("cuMemFree" 3020, pointer);
        ok!("cuGraphLaunch" 10000, executable, on);
        ok!("cuMemFreeAsync" 11020, pointer, on);
        ok!("cuGraphLaunch" 10000, executable, on);
        ok!("cuStreamSynchronize" 2000, on);
        // freed by the next launch
        ok!("cuMemFree" 3020, pointer);
        ok!("cuGraphExecDestroy" 10000, executable);
        let mut freeing = 0usize;
        ok!("cuGraphInstantiateWithFlags" 11040, &mut freeing, graph, 1u64);
        for _ in 0..3 {
            ok!("cuGraphLaunch" 10000, freeing, on);
        }
        ok!("cuStreamSynchronize" 2000, on);
        ok!("cuGraphDestroy" 10000, graph);
        assert_eq!(get::<u32>(pointer, 64), [7; 64]);
    }
}
