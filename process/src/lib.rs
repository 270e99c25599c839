//! Stop a program, capture what the kernel knows of it, freeze its memory, rebuild it.

use holdfast_image::pages::{PageRun, PageSource};
use holdfast_image::record::{InjectArea, ProcessRecord};
use holdfast_image::manifest::StopBreakdown;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
