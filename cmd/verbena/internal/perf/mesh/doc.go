// SPDX-License-Identifier: Apache-2.0

// Package mesh measures latency and bandwidth between every pair of a list of
// hosts, and finds what is slower than the rest.
//
// An Agent runs on each host, and a coordinator (Run) tells the agents, over
// TCP connections with a JSON object on each line (message), which of them are
// to measure together. The agents measure with package measure. The coordinator
// collects what they have measured (Result) and compares it (Result.Judge).
package mesh
