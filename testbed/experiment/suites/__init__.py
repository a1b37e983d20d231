"""Other people's OpenCL programs and test suites, run natively and forwarded, and compared."""
