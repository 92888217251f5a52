// SPDX-License-Identifier: Apache-2.0

// Package udmabuf creates DMA buffers in memory of the program, with Linux's
// udmabuf. In tests they stand for memory of a device such as a GPU, and the
// tests can read and write their content.
package udmabuf
