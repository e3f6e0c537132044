"""The HTTP API as data: its operations, what they take and return, and its errors.

The server (`holdfast.web`) makes routes of it, the client (`holdfast.client`) requests. Neither Starlette nor an HTTP
library is needed here.
"""
