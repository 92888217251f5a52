// SPDX-License-Identifier: Apache-2.0

// Package tests holds tests of more than one package against C: what the C
// libraries say, from golden files and, where they are installed, live.
package tests
