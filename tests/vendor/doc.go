// SPDX-License-Identifier: Apache-2.0

// Package vendor tests packages ibverbs/efa and ibverbs/mlx5 with C libraries
// in the place of the drivers': every call goes through C, which writes it
// down.
package vendor
