// SPDX-License-Identifier: Apache-2.0

/* What is read in the place of a header that was not found. */
