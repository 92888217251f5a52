// SPDX-License-Identifier: Apache-2.0

// Package link carries frames between the processes of one machine that use the
// device in user space.
//
// Each process is a node with a number, its slot. For the slot, and for each
// port on which it listens, the process claims a name: it listens on a Unix
// socket with that name in the abstract namespace, which the kernel releases
// when the process ends in any way. Each socket's name has a random part, so
// that other users cannot prevent this user from taking the name. A name counts
// only if the kernel reports that its socket belongs to this user. Processes
// find each other if they have the same network namespace and user.
//
// Frames between two nodes arrive in order and once, unless one of the nodes
// ends. Frames in each direction go through a ring in memory that the two nodes
// share, which the sender creates. A Unix socket carries the descriptors of the
// memory, and its end shows that the other node has ended. Each node has a
// bell, a word in shared memory and an eventfd. Other nodes ring the bell when
// there is a frame for the node, or room for its frames again.
//
// A Socket sends and receives UDP datagrams to and from other machines, on port
// 4791 of one address, without privileges. It does not interpret them.
package link
