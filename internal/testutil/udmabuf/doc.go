// SPDX-License-Identifier: Apache-2.0

// Package udmabuf makes DMA buffers of the program's own memory, with Linux's
// udmabuf. They stand for the memory of a device such as a GPU, and tests see
// what is in them.
package udmabuf
